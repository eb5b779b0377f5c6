//! What benches/README.md says that a GPU should take is what its formulas give for the released models.

use std::path::Path;

use super::what_fits as table;
use palimpsest::selftest::arithmetic::{self, Kernel, LayerWork, Recording, Work};
use palimpsest::selftest::cards::A100_80GB;
use palimpsest_core::model::{DecoderSpec, ModelDescription};

const MODELS: [(&str, &str); 2] = [("qwen3.5-9b", "Qwen3.5-9B"), ("qwen3.5-27b", "Qwen3.5-27B")];
const TOKENS: usize = 150_000;
/// Rows that the observer reads, of a new session and of a question, and key spans that it tells apart.
const RECORDING: Recording = Recording { rows: 400 + 100, spans: 500 };
/// Bytes of a number in bf16.
const SIZE: usize = 2;
/// Seconds of a launch.
const LAUNCH: f64 = 5e-6;

/// The work of all layers.
fn work(spec: &DecoderSpec, of: impl Fn(&LayerWork) -> Work) -> Work {
    LayerWork::all(spec, SIZE).map(|layer| of(&layer)).sum()
}

/// The number of a layer's launches for one token, from the table that another test keeps.
fn launches(readme: &str, layer: &str) -> f64 {
    let row =
        readme.lines().find(|line| line.starts_with(&format!("| {layer} |"))).expect("a row of the layer");
    row.split('|').nth(5).unwrap().trim().parse().unwrap()
}

fn expectations(readme: &str) -> String {
    let mut rows: Vec<(&str, String, Vec<String>)> = [
        ("prefill, linear maps", "2 x weights x tokens, bf16"),
        ("prefill, attention's products", "4 x head_dim x heads x pairs x layers, bf16"),
        (
            "prefill, attention's score blocks",
            "16 B x heads x pairs x layers, and the cache once for every 512 rows",
        ),
        ("prefill, delta rule", "operations of blocks of 64 tokens, f32"),
        ("**prefill, by products**", "the four above"),
        (
            "**prefill, fused** (by default; `flash-attn` is counted the same)",
            "without the score blocks, half the square of pairs",
        ),
        (
            "observer, full layers, by products",
            "2 x (head_dim + spans) x rows x keys x heads x layers, f32, and 20 B a score",
        ),
        ("observer, full layers, fused", "2 x head_dim x rows x keys x heads x layers, f32"),
        ("observer, linear layers", "2 x (2 x key_dim + 64) x rows x keys x heads x layers, f32"),
        ("a token, weights", "2 B each, without the embedding"),
        ("a token, cache and scores, by products", "keys and values of 150,000 tokens, 16 B a score"),
        ("a token, cache, fused", "keys and values of 150,000 tokens"),
        ("a token, states", "24 B x key_dim x value_dim x heads x layers, f32"),
        ("**a token, by products**", "weights, cache and scores, states"),
        ("**a token, fused**", "weights, cache, states"),
        ("a token, launches", "the table above x layers x 5 us, unless hidden behind the reading"),
        ("memory, with the observer", "`palimpsest model plan`"),
        ("memory, without", "the same less its observer"),
    ]
    .into_iter()
    .map(|(what, formula)| (what, formula.to_owned(), Vec::new()))
    .collect();
    for (name, _) in MODELS {
        let description = ModelDescription::released(name).unwrap().unwrap();
        let spec = &description.spec;
        let linear = work(spec, |layer| layer.linear(TOKENS));
        let products = work(spec, |layer| layer.attention(TOKENS, Kernel::Blocks));
        let traffic = work(spec, |layer| layer.score_blocks(TOKENS, Kernel::Blocks));
        let rule = work(spec, |layer| layer.rule(TOKENS));
        let chunked = work(spec, |layer| layer.prefill(TOKENS, Kernel::Blocks));
        let fused = work(spec, |layer| layer.prefill(TOKENS, Kernel::Fused));

        let observer = |kernel| work(spec, |layer| layer.observed_scores(TOKENS, RECORDING, kernel));
        let walk = work(spec, |layer| layer.observed_rule(TOKENS, RECORDING));

        let read = work(spec, |layer| layer.token_weights()) + arithmetic::token_head(spec, SIZE);
        let seen = |kernel| work(spec, |layer| layer.token_cache(TOKENS, kernel));
        let state = work(spec, |layer| layer.token_state());
        let linear_layers = spec.layers.iter().filter(|layer| layer.delta_net().is_some()).count() as f64;
        let full_layers = spec.layers.len() as f64 - linear_layers;
        let launches = launches(readme, "gated attention") * full_layers
            + launches(readme, "gated delta rule") * linear_layers;

        let cards =
            table::CARDS.into_iter().map(|cards| (cards, table::on_cards(&description, TOKENS, cards)));
        let (cards, (plan, _)) = cards.into_iter().find(|(_, (_, fits))| *fits).expect("four cards hold it");
        let without = table::on_cards(&description, TOKENS, 1).0;
        let cards = if cards == 1 { "1 card".to_owned() } else { format!("{cards} cards") };
        let gb = |bytes: u64| format!("{:.0} GB", bytes as f64 / 1e9);
        let seconds = |work: Work| A100_80GB.seconds(&work, true);
        let peta = |work: Work| match work.operations() {
            few if few < 5e12 => format!("{:.1} TFLOP", few / 1e12),
            many => format!("{:.2} PFLOP", many / 1e15),
        };
        let s = |work: Work| format!("{:.1} s", seconds(work));
        let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
        let giga = |work: Work| format!("{:.1} GB, {}", work.bytes / 1e9, ms(seconds(work)));
        let token = |work: Work| format!("**{}, {:.0} tokens/s**", ms(seconds(work)), 1.0 / seconds(work));
        let cells = [
            format!("{}, {}", peta(linear), s(linear)),
            format!("{}, {}", peta(products), s(products)),
            format!("{:.0} TB, {}", traffic.bytes / 1e12, s(traffic)),
            format!("{}, {}", peta(rule), s(rule)),
            format!("**{}**", s(chunked)),
            format!("**{}**", s(fused)),
            format!("{}, {}", peta(observer(Kernel::Blocks)), s(observer(Kernel::Blocks))),
            format!("{}, {}", peta(observer(Kernel::Fused)), s(observer(Kernel::Fused))),
            format!("{}, {}", peta(walk), s(walk)),
            giga(read),
            giga(seen(Kernel::Blocks)),
            giga(seen(Kernel::Fused)),
            giga(state),
            token(read + seen(Kernel::Blocks) + state),
            token(read + seen(Kernel::Fused) + state),
            format!("{launches:.0}, {}", ms(launches * LAUNCH)),
            format!("{}, {cards}", gb(plan.total())),
            gb(without.total() - without.observer()),
        ];
        for ((_, _, row), cell) in rows.iter_mut().zip(cells) {
            row.push(cell);
        }
    }
    let mut text = format!("| at 150,000 tokens | formula | {} | {} |\n", MODELS[0].1, MODELS[1].1);
    text.push_str("| --- | --- | --- | --- |\n");
    for (what, formula, cells) in rows {
        text.push_str(&format!("| {what} | {formula} | {} |\n", cells.join(" | ")));
    }
    text
}

/// Rewrites the table where PALIMPSEST_BLESS is set; compares it otherwise.
#[test]
fn the_table_of_what_a_gpu_should_take_is_what_its_formulas_give() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/README.md");
    let readme = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- begin: expectations -->\n", "<!-- end: expectations -->");
    let start = readme.find(begin).expect("the README has the marker") + begin.len();
    let stop = readme.find(end).expect("the README has the marker");
    let expected = expectations(&readme);
    if std::env::var_os("PALIMPSEST_BLESS").is_some() {
        std::fs::write(&path, format!("{}{expected}{}", &readme[..start], &readme[stop..])).unwrap();
        return;
    }
    assert_eq!(
        &readme[start..stop],
        expected,
        "benches/README.md is out of date; PALIMPSEST_BLESS=1 cargo test --release gpu_should_take rewrites it"
    );
}
