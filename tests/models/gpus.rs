//! What benches/README.md says that a GPU should take is what its formulas give for the released models.

use std::path::Path;

use palimpsest::engine::plan::table;
use palimpsest::model::{DecoderSpec, MixerSpec, Outline};

const MODELS: [(&str, &str); 2] = [("qwen3.5-9b", "Qwen3.5-9B"), ("qwen3.5-27b", "Qwen3.5-27B")];
const TOKENS: f64 = 150_000.0;
/// Key spans that the observer tells apart, and rows that it reads: of a new session and of a question.
const SPANS: f64 = 500.0;
const ROWS: f64 = 400.0 + 100.0;

/// An A100-80GB: dense bf16 products, f32 products (Candle leaves TF32 off), memory.
const BF16: f64 = 312e12;
const F32: f64 = 19.5e12;
const BANDWIDTH: f64 = 2.04e12;
/// Of those, what is assumed to be reached.
const OF_BF16: f64 = 0.5;
const OF_F32: f64 = 0.3;
const OF_BANDWIDTH: f64 = 0.75;
/// Seconds of a launch.
const LAUNCH: f64 = 5e-6;

/// Rows of a block of the attention that is made of matrix products.
const BLOCK_ROWS: f64 = 512.0;
/// Bytes read and written for a score of it: the product, in f32, 4, maximum 4, less the maximum 8, exponential 8, sum 4, to
/// bf16 6, the product with values 2.
const SCORE_BYTES: f64 = 36.0;
/// The same of the observer's, which stays in f32: product 4, maximum 4, less it 8, exponential 8, sum 4, product 4.
const OBSERVED_BYTES: f64 = 32.0;
/// Tokens of a block of the delta rule, and operations a token and head of its triangle's inverse: of a block 2 products of 32
/// by 32, twice 2 of 16 by 16, and four times 6 of 16 by 16 under masks.
const RULE_BLOCK: f64 = 64.0;
const INVERSE: f64 = (2.0 * 65_536.0 + 28.0 * 8_192.0) / RULE_BLOCK;

/// What a model costs, in operations and bytes.
struct Cost {
    /// Weights of linear maps that every token goes through, and all that decoding reads.
    linear: f64,
    read: f64,
    full_layers: f64,
    heads: f64,
    head_dim: f64,
    /// Bytes a token of keys and values in all layers.
    cache: f64,
    linear_layers: f64,
    /// Of the delta rule: a token in all layers; of its state: a token in all layers.
    rule: f64,
    state: f64,
    /// Of the observer of linear layers: a row and key in all layers.
    walk: f64,
}

fn cost(spec: &DecoderSpec) -> Cost {
    let (hidden, vocab) = (spec.hidden as f64, spec.vocab as f64);
    let linear = spec.layers.iter().map(|layer| layer.parameters(spec.hidden) as f64).sum::<f64>();
    let mut cost = Cost {
        linear,
        read: (linear + hidden * vocab) * 2.0,
        full_layers: 0.0,
        heads: 0.0,
        head_dim: 0.0,
        cache: 0.0,
        linear_layers: 0.0,
        rule: 0.0,
        state: 0.0,
        walk: 0.0,
    };
    for layer in &spec.layers {
        match &layer.mixer {
            MixerSpec::Attention(a) => {
                cost.full_layers += 1.0;
                (cost.heads, cost.head_dim) = (a.heads as f64, a.head_dim as f64);
                cost.cache += 2.0 * 2.0 * (a.kv_heads * a.head_dim) as f64;
            }
            MixerSpec::DeltaNet(d) => {
                let (dk, dv, c) = (d.key_dim as f64, d.value_dim as f64, RULE_BLOCK);
                let group = (d.value_heads / d.key_heads) as f64;
                let head =
                    6.0 * dk * dv + 2.0 * c * (dk + 2.0 * dv) + 4.0 * c * dk / group + 2.0 * c * c + INVERSE;
                let heads = d.value_heads as f64;
                cost.linear_layers += 1.0;
                cost.rule += heads * head;
                // Decayed 8, read 4, what is written to it 4, added 12.
                cost.state += heads * dk * dv * 24.0;
                cost.walk += heads * 2.0 * (2.0 * dk + c);
            }
        }
    }
    cost
}

/// Queries times the keys that their block of rows sees.
fn pairs() -> f64 {
    let mut pairs = 0.0;
    let mut start = 0.0;
    while start < TOKENS {
        let end = (start + BLOCK_ROWS).min(TOKENS);
        pairs += (end - start) * end;
        start = end;
    }
    pairs
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
            "36 B x heads x pairs x layers, and the cache once for every 512 rows",
        ),
        ("prefill, delta rule", "operations of blocks of 64 tokens, f32"),
        ("**prefill, as built by default**", "the four above"),
        ("**prefill, with `flash-attn`**", "without the score blocks, half the square of pairs"),
        (
            "observer, full layers",
            "2 x (head_dim + spans) x rows x keys x heads x layers, f32, and 32 B a score",
        ),
        ("observer, linear layers", "2 x (2 x key_dim + 64) x rows x keys x heads x layers, f32"),
        ("a token, weights", "2 B each, without the embedding"),
        ("a token, cache and scores", "keys and values of 150,000 tokens, 36 B a score"),
        ("a token, states", "24 B x key_dim x value_dim x heads x layers, f32"),
        ("**a token**", "the three above"),
        ("a token, launches", "the table above x layers x 5 us, unless hidden behind the reading"),
        ("memory, with the observer", "`palimpsest model plan`"),
        ("memory, without", "the same less its observer"),
    ]
    .into_iter()
    .map(|(what, formula)| (what, formula.to_owned(), Vec::new()))
    .collect();
    for (name, _) in MODELS {
        let outline = Outline::released(name).unwrap().unwrap();
        let cost = cost(&outline.spec);
        let linear = 2.0 * cost.linear * TOKENS;
        let scores = cost.heads * cost.full_layers;
        let products = 4.0 * cost.head_dim * scores * pairs();
        let traffic = SCORE_BYTES * scores * pairs() + cost.cache * pairs() / BLOCK_ROWS;
        let rule = cost.rule * TOKENS;
        let flash = 4.0 * cost.head_dim * scores * TOKENS * TOKENS / 2.0;
        let bf16 = |flop: f64| flop / (BF16 * OF_BF16);
        let f32 = |flop: f64| flop / (F32 * OF_F32);
        let bytes = |bytes: f64| bytes / (BANDWIDTH * OF_BANDWIDTH);
        let chunked = bf16(linear + products) + bytes(traffic) + f32(rule);
        let with_flash = bf16(linear + flash) + f32(rule);

        let observed = ROWS * TOKENS * scores;
        let observer = 2.0 * (cost.head_dim + SPANS) * observed;
        let walk = cost.walk * ROWS * TOKENS;

        let seen = cost.cache * TOKENS + SCORE_BYTES * scores * TOKENS;
        let token = cost.read + seen + cost.state;
        let launches = launches(readme, "gated attention") * cost.full_layers
            + launches(readme, "gated delta rule") * cost.linear_layers;

        let cards =
            table::CARDS.into_iter().map(|cards| (cards, table::on_cards(&outline, TOKENS as usize, cards)));
        let (cards, (plan, _)) = cards.into_iter().find(|(_, (_, fits))| *fits).expect("four cards hold it");
        let without = table::on_cards(&outline, TOKENS as usize, 1).0;
        let cards = if cards == 1 { "1 card".to_owned() } else { format!("{cards} cards") };
        let gb = |bytes: u64| format!("{:.0} GB", bytes as f64 / 1e9);
        let peta = |flop: f64| format!("{:.2} PFLOP", flop / 1e15);
        let s = |seconds: f64| format!("{seconds:.1} s");
        let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
        let cells = [
            format!("{}, {}", peta(linear), s(bf16(linear))),
            format!("{}, {}", peta(products), s(bf16(products))),
            format!("{:.0} TB, {}", traffic / 1e12, s(bytes(traffic))),
            format!("{}, {}", peta(rule), s(f32(rule))),
            format!("**{}**", s(chunked)),
            format!("**{}**", s(with_flash)),
            format!("{}, {}", peta(observer), s(f32(observer) + bytes(OBSERVED_BYTES * observed))),
            format!("{}, {}", peta(walk), s(f32(walk))),
            format!("{:.1} GB, {}", cost.read / 1e9, ms(bytes(cost.read))),
            format!("{:.1} GB, {}", seen / 1e9, ms(bytes(seen))),
            format!("{:.1} GB, {}", cost.state / 1e9, ms(bytes(cost.state))),
            format!("**{}, {:.0} tokens/s**", ms(bytes(token)), 1.0 / bytes(token)),
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
