//! Keys that sliding windows and indexers leave to rows, and spans forced into them: as transformers says, together as alone, and at no cost
//! to answers.

use candle_core::{Device, Tensor};
use palimpsest::observe::Dump;
use palimpsest_core::ablate::{Metric, Prompt, Said, Target};
use palimpsest_core::attention::{Hole, LayerHoles, NoObserver, Selected};
use palimpsest_core::engine::memory_plan::Branches;
use palimpsest_core::engine::thread::Limits;
use palimpsest_core::engine::{Branch, Engine, Measured, Observe, Request, Rows, Session};
use palimpsest_core::model::Pass;

use super::reference::TokensFile;
use super::{answering, apart, engine, fixture, numbers, session};

/// With windows of 23 and fewer tokens, and with learned sinks.
const WINDOWED: [&str; 3] = ["gemma3-tiny", "gpt-oss-tiny", "olmo3-tiny"];
/// Every row sees 24 keys.
pub const INDEXED: [&str; 2] = ["deepseek-v32-tiny", "glm-moe-dsa-tiny"];
const ANSWER: usize = 6;

fn expected(name: &str, tensor: &str) -> Vec<f32> {
    let path = fixture("selected").join(format!("{name}.safetensors"));
    numbers(&candle_core::safetensors::load(path, &Device::Cpu).unwrap()[tensor])
}

fn branch(file: &TokensFile, shared: usize, selected: bool) -> Branch {
    let (keys, n) = (file.keys(), file.tokens.len());
    let rows = Rows::named(&["new", "query", "last", "answer"], &keys, n).unwrap();
    Branch {
        tokens: file.tokens[shared..].to_vec(),
        observe: Observe { rows, keys, selected, ..Observe::default() },
        tasks: vec![answering(ANSWER, &[])],
        ..Branch::default()
    }
}

/// A session whose caches keep all keys of windowed layers.
fn whole(engine: &Engine, context: usize) -> Session {
    let cache = engine.decoder().whole_cache(context).unwrap();
    Session::new(engine.clone(), cache, Limits::of_branches(context, Branches::default()))
}

/// Asks `count` times the same after a shared prefix.
fn answers(
    engine: &Engine,
    file: &TokensFile,
    (count, shared): (usize, usize),
    selected: bool,
) -> Vec<Measured> {
    let mut session = session(engine, 400, (count, 20));
    let branches = (0..count).map(|_| branch(file, shared, selected)).collect();
    let request = Request { prefix: file.tokens[..shared].into(), branches, ..Request::default() };
    let answers = session.answers(request, &mut |_, _, _| true);
    answers.into_iter().map(|mut tasks| tasks.remove(0).unwrap()).collect()
}

fn selected(measured: &Measured) -> Selected {
    measured.measurement.finish_selected(&measured.masses).unwrap().unwrap()
}

/// The largest difference; NaN must stand in the same places.
fn off(found: &ndarray::Array3<f32>, expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let both = found.iter().zip(expected).filter(|(a, b)| !(a.is_nan() && b.is_nan()));
    both.fold(
        0.0,
        |most, (a, b)| if a.is_nan() || b.is_nan() { f32::INFINITY } else { most.max((a - b).abs()) },
    )
}

#[test]
fn what_choices_leave_to_rows_is_that_of_transformers_however_a_prompt_is_read() {
    for name in WINDOWED.into_iter().chain(INDEXED) {
        let file = TokensFile::of(name);
        let n = file.tokens.len();
        for (chunk, count, shared) in [(151, 1, 0), (37, 1, 0), (64, 2, 130), (16, 3, 130)] {
            let engine = engine(&fixture(name), chunk);
            let plain = answers(&engine, &file, (count, shared), false);
            for (with, without) in answers(&engine, &file, (count, shared), true).iter().zip(&plain) {
                assert_eq!(with.generated.tokens, without.generated.tokens, "{name}");
                assert_eq!((&with.masses, &with.logits), (&without.masses, &without.logits), "{name}");
                assert!(without.measurement.finish_selected(&without.masses).unwrap().is_none());
                assert_eq!(with.masses.rows.last().unwrap().range(), n - 1..n - 1 + ANSWER);
                let found = selected(with);
                for (what, found) in [("selected", &found.selected), ("forgone", &found.forgone)] {
                    let off = off(found, &expected(name, what));
                    assert!(
                        off < 1e-4,
                        "{name}, chunk {chunk}, {count} after {shared}: {what} is off by {off:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn caches_that_dropped_old_keys_give_what_whole_caches_give() {
    for name in WINDOWED {
        let mut file = TokensFile::of(name);
        let engine = engine(&fixture(name), 64);
        // Long enough that windows move on, in caches with room for more.
        file.tokens = file.tokens.repeat(4);
        let measured = |mut session: Session| {
            let request = Request { branches: vec![branch(&file, 0, true)], ..Request::default() };
            selected(&session.answer(request, &mut |_| true).unwrap())
        };
        let [dropping, keeping] = [session(&engine, 2000, (1, 20)), whole(&engine, 2000)].map(measured);
        let numbers = |of: &ndarray::Array3<f32>| of.iter().copied().collect::<Vec<f32>>();
        assert!(off(&dropping.selected, &numbers(&keeping.selected)) == 0.0, "{name}");
        assert!(off(&dropping.forgone, &numbers(&keeping.forgone)) < 1e-6, "{name}");
        assert!(dropping.forgone.iter().any(|mass| *mass > 0.01), "{name}");
    }
}

#[test]
fn what_evictions_leave_is_the_share_that_they_kept() {
    use palimpsest_core::evict::Eviction;
    for name in ["llama-tiny", "gemma3-tiny"] {
        let file = TokensFile::of(name);
        let at = 139;
        let evict = Eviction { evict: "knorm:0.3".parse().unwrap(), at, spans: file.keys(), seed: 0 };
        let evicting = Branch { evict: Some(evict), ..branch(&file, 130, true) };
        let mut session = session(&engine(&fixture(name), 64), 400, (1, 20));
        let request =
            Request { prefix: file.tokens[..130].into(), branches: vec![evicting], ..Request::default() };
        let measured = session.answer(request, &mut |_| true).unwrap();
        let (found, kept) = (selected(&measured), measured.kept.as_ref().unwrap());
        assert!(!kept.layers.is_empty());
        for (l, layer) in kept.layers.iter().enumerate() {
            let own = measured.masses.layers.iter().position(|known| known == layer).unwrap();
            for (k, span) in file.keys().iter().enumerate().filter(|(_, span)| span.end <= at) {
                let share = kept.shares.slice(ndarray::s![l, .., k]).mean().unwrap();
                for (row, is_after) in [(0, false), (1, true), (2, true), (3, true)] {
                    let found = found.selected[[own, row, k]];
                    let expected = if is_after { share } else { 1.0 };
                    // `new` is read before the eviction and sees nothing of later spans.
                    let sees = is_after || span.start < 120;
                    assert!(
                        !sees || (found - expected).abs() < 1e-6,
                        "{name} {layer} {}: {found}",
                        span.label
                    );
                }
                assert_eq!(found.forgone[[own, 0, k]], 0.0);
                assert_eq!(found.forgone[[own, 2, k]] > 0.0, share < 1.0, "{name} {layer} {}", span.label);
            }
        }
    }
}

/// Logits of the last 16 positions from caches that keep all keys, with spans forced into windows from the query on.
fn forced(engine: &Engine, file: &TokensFile, labels: &[&str], tokens: &[u32]) -> Vec<f32> {
    let mut cache = engine.decoder().whole_cache(tokens.len()).unwrap();
    let (keys, kinds) = (file.keys(), engine.decoder().spec().layer_kinds());
    let span = |label: &str| keys.iter().find(|span| span.label == label).unwrap().range();
    let prompt = Prompt { tokens, cut: 0, question: span("query").start.min(tokens.len()), kinds: &kinds };
    let holes = prompt.forced(&labels.iter().map(|label| span(label)).collect::<Vec<_>>());
    let mut nothing = NoObserver;
    let pass = Pass::from(&mut nothing).hiding(&holes);
    numbers(&engine.prefill(&mut cache, tokens, 16, pass, &mut |_| true).unwrap())
}

#[test]
fn a_span_forced_into_choices_gives_the_logits_of_transformers() {
    for name in WINDOWED.into_iter().chain(INDEXED) {
        let file = TokensFile::of(name);
        for chunk in [1, 37, 151] {
            let engine = engine(&fixture(name), chunk);
            for (labels, tensor) in [(["old"], "forced"), (["all"], "forced_all")] {
                let off = apart(&forced(&engine, &file, &labels, &file.tokens), &expected(name, tensor));
                assert!(off < 1e-3, "{name}, chunk {chunk}: {tensor} is off by {off:e}");
            }
            let plain = forced(&engine, &file, &[], &file.tokens);
            assert!(apart(&plain, &expected(name, "forced")) > 1e-2, "{name}: nothing was forced");
            // A cache that keeps all changes no bit.
            let mut cache = engine.decoder().cache(file.tokens.len()).unwrap();
            let usual = engine.prefill(&mut cache, &file.tokens, 16, &mut NoObserver, &mut |_| true).unwrap();
            assert_eq!(numbers(&usual), plain, "{name}");
        }
    }
}

#[test]
fn forcing_what_a_choice_holds_changes_no_bit_and_effects_are_those_of_whole_passes() {
    for name in WINDOWED.into_iter().chain(INDEXED) {
        let file = TokensFile::of(name);
        let engine = engine(&fixture(name), 64);
        let kinds = engine.decoder().spec().layer_kinds();
        // All of the first 22 tokens is within every window of gemma3-tiny, and of windows as wide.
        let windows = engine.decoder().spec().layers.iter().filter_map(|layer| layer.attention()?.window);
        let short = windows.min().unwrap_or(24).min(22);
        let said = [7, 3, 9, 12];
        let of = |tokens: &[u32], question: usize, shown: std::ops::Range<usize>| {
            let prompt = Prompt { tokens, cut: question, question, kinds: &kinds };
            let target = Target::Answer(Said { tokens: &said, thought: 0 });
            let mut session = whole(&engine, tokens.len() + said.len());
            let metric = Metric::read(&mut session, &prompt.history(), target, &mut |_| true).unwrap();
            let mut found = Vec::new();
            let shown = [prompt.forced(&[shown]), prompt.forced(&[])];
            metric
                .effects(&mut session, &prompt.history(), &shown, &mut |_| true, &mut |_, row| {
                    found.extend(row.effect());
                    true
                })
                .unwrap();
            (metric.value(), found)
        };
        let question = short - said.len() - 4;
        let tokens = &file.tokens[..short - said.len() + 1];
        let (_, found) = of(tokens, question, 0..question);
        assert_eq!((found[0].log_p_drop, found[0].changed), (0.0, false), "{name}");

        let (value, found) = of(&file.tokens, 139, 17..54);
        assert_eq!(found[1].log_p_drop, 0.0, "{name}: nothing was shown");
        // The answer's log-probability in one pass over prompt and answer.
        let with = [&file.tokens[..], &said].concat();
        let logits = forced(&engine, &file, &["old"], &with);
        let vocab = logits.len() / 16;
        let log_p: f64 = said
            .iter()
            .enumerate()
            .map(|(i, token)| {
                let row = &logits[(16 - 1 - said.len() + i) * vocab..][..vocab];
                let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
                f64::from(row[*token as usize]) - sum.ln()
            })
            .sum::<f64>()
            / said.len() as f64;
        let drop = found[0].log_p_drop;
        assert!((value - drop - log_p).abs() < 1e-4, "{name}: {value} - {drop} is not {log_p}");
        assert!(drop.abs() > 1e-3, "{name}: {drop}");
    }
}

#[test]
fn indexers_choose_the_keys_that_those_of_transformers_choose_at_every_chunk_size() {
    for name in INDEXED {
        let file = TokensFile::of(name);
        let path = fixture("selected").join(format!("{name}.safetensors"));
        let choices = &candle_core::safetensors::load(path, &Device::Cpu).unwrap()["choices"];
        let n = file.tokens.len();
        let dir = tempfile::tempdir().unwrap();
        let dump = dir.path().join("dump.safetensors");
        let layers = choices.dim(0).unwrap();
        let mut tensors: std::collections::HashMap<String, Tensor> =
            (0..layers).map(|layer| (format!("selected.{layer}"), choices.get(layer).unwrap())).collect();
        tensors.insert("tokens".to_owned(), Tensor::new(&file.tokens[..], &Device::Cpu).unwrap());
        candle_core::safetensors::save(&tensors, &dump).unwrap();
        let dump = Dump::read(&dump).unwrap();
        for chunk in [1, 7, 37, 64, 151] {
            let engine = engine(&fixture(name), chunk);
            let found = dump.differences(&ndarray::Array2::zeros((0, 0)), &engine, 0.0).unwrap();
            assert_eq!(found.len(), layers);
            assert!(
                found.iter().all(|one| one.rows == n && one.largest == 0.0),
                "{name}, {chunk}: {found:?}"
            );
        }
    }
}

#[test]
fn hidden_keys_are_never_chosen() {
    for name in INDEXED {
        let file = TokensFile::of(name);
        let (keys, engine) = (file.keys(), engine(&fixture(name), 64));
        let kinds = engine.decoder().spec().layer_kinds();
        let knockout = "query->old".parse().unwrap();
        let holes = LayerHoles::new(&[knockout], &keys, file.tokens.len(), &kinds).unwrap();
        let mut session = session(&engine, 400, (1, 20));
        let hiding = Branch { knockouts: holes, ..branch(&file, 130, true) };
        let request =
            Request { prefix: file.tokens[..130].into(), branches: vec![hiding], ..Request::default() };
        let measured = session.answer(request, &mut |_| true).unwrap();
        let old = keys.iter().position(|span| span.label == "old").unwrap();
        let (mass, found) = (&measured.masses.mass, selected(&measured));
        for (layer, row) in (0..kinds.len()).flat_map(|layer| [1, 2, 3].map(|row| (layer, row))) {
            assert_eq!(found.selected[[layer, row, old]], 0.0, "{name}");
            assert_eq!(found.forgone[[layer, row, old]], 0.0, "{name}");
            assert!(mass.slice(ndarray::s![layer, .., row, old]).iter().all(|mass| *mass == 0.0), "{name}");
        }
    }
}

#[test]
fn layers_that_share_an_indexer_choose_among_the_keys_that_are_not_hidden_at_them() {
    // Layer 2 chooses by the indexer of layer 1.
    let name = "glm-moe-dsa-tiny";
    let file = TokensFile::of(name);
    let (keys, engine) = (file.keys(), engine(&fixture(name), 64));
    let kinds = engine.decoder().spec().layer_kinds();
    let place = |label: &str| keys.iter().position(|span| span.label == label).unwrap();
    let (bos, old, query, all) = (place("bos"), place("old"), place("query"), place("all"));
    let from = keys[query].start;
    let at = |layer: usize, hidden: std::ops::Range<usize>| {
        let hole = Hole { rows: from..usize::MAX, keys: hidden };
        LayerHoles::at_softmax(&(layer..layer + 1), &kinds, vec![hole])
    };
    let hidden = [LayerHoles::default(), at(2, keys[old].range()), at(1, keys[old].range()), at(2, 1..from)];
    let branches = hidden.map(|knockouts| Branch { knockouts, ..branch(&file, 130, true) });
    let request =
        Request { prefix: file.tokens[..130].into(), branches: branches.into(), ..Request::default() };
    let answers = session(&engine, 400, (4, 20)).answers(request, &mut |_, _, _| true);
    let found = answers.into_iter().map(|mut tasks| selected(&tasks.remove(0).unwrap()).selected);
    let found: Vec<ndarray::Array3<f32>> = found.collect();
    let [plain, shared, own, few] = found.as_slice() else { panic!("{} answers", found.len()) };
    // The question's rows, and its last.
    for row in [1, 2] {
        assert!(plain[[2, row, old]] > 0.0, "there is something to hide");
        // 1. Hidden at the layer that shares: others are chosen in their place, and there alone.
        assert_eq!((shared[[2, row, old]], shared[[2, row, all]]), (0.0, plain[[2, row, all]]));
        assert_eq!(shared.slice(ndarray::s![..2, row, ..]), plain.slice(ndarray::s![..2, row, ..]));
        // 2. Hidden at the indexer's layer alone: the layer that shares still chooses among all.
        assert_eq!(own[[1, row, old]], 0.0);
        assert_eq!(own.slice(ndarray::s![2, row, ..]), plain.slice(ndarray::s![2, row, ..]));
    }
    // 3. Fewer keys than a choice has: all that are left are seen.
    for row in [1, 2, 3] {
        assert_eq!((few[[2, row, bos]], few[[2, row, query]], few[[2, row, old]]), (1.0, 1.0, 0.0));
    }
    assert_eq!(shared[[2, 3, old]], 0.0, "nor do generated tokens see them");
}

#[test]
fn a_dump_of_another_engine_is_held_against_ours_row_by_row() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump.safetensors");
    let engine = engine(&fixture("gemma3-tiny"), 64);
    let file = TokensFile::of("gemma3-tiny");
    let (n, kinds) = (file.tokens.len(), engine.decoder().spec().layer_kinds());
    let windowed = kinds.iter().position(|kind| kind.is_windowed()).unwrap();
    let rows = [3i64, 140, 150];
    let mut cache = engine.decoder().cache(n).unwrap();
    let logits = engine.prefill(&mut cache, &file.tokens, n, &mut NoObserver, &mut |_| true).unwrap();
    let seen: Vec<u8> = rows
        .iter()
        .flat_map(|&row| (0..n as i64).map(move |key| u8::from(key <= row && row - key < 23)))
        .collect();
    let write = |logits: &Tensor, seen: &[u8], tokens: &[u32]| {
        let cpu = &Device::Cpu;
        let of_rows = Tensor::new(&rows[..], cpu).unwrap();
        let tensors = std::collections::HashMap::from([
            ("tokens".to_owned(), Tensor::new(tokens, cpu).unwrap()),
            ("logits".to_owned(), logits.index_select(&of_rows, 0).unwrap()),
            ("rows".to_owned(), of_rows),
            (format!("selected.{windowed}"), Tensor::from_slice(seen, (3, n), cpu).unwrap()),
        ]);
        candle_core::safetensors::save(&tensors, &path).unwrap();
    };
    let ours = logits.to_vec2::<f32>().unwrap();
    let ours = ndarray::Array2::from_shape_fn((n, ours[0].len()), |(row, token)| ours[row][token]);
    let compared = || Dump::read(&path).unwrap().differences(&ours, &engine, 1e-3).unwrap();
    write(&logits, &seen, &file.tokens);
    assert!(compared().iter().all(|one| one.largest == 0.0 && one.first.is_none() && one.rows == 3));
    // Other logits of one row, and one more key of another.
    let mut other = seen.clone();
    other[n + 100] ^= 1;
    let more = (logits + 0.5).unwrap();
    write(&more, &other, &file.tokens);
    let found = compared();
    assert!((found[0].largest - 0.5).abs() < 1e-4 && found[0].first == Some(3), "{found:?}");
    assert_eq!((found[1].largest, found[1].at, found[1].first), (1.0, (140, 100), Some(140)));
    // Rows that the prompt lacks.
    write(&more, &seen, &file.tokens[..141]);
    let refused = format!("{:#}", Dump::read(&path).err().unwrap());
    assert!(refused.contains("row 150 is not among its 141 tokens"), "{refused}");
}
