//! Counts host-device copies per layer, by running the code path of other devices on the CPU, and compares its results with the CPU
//! kernels. Uses bf16, the default dtype of other devices.

use std::path::{Path, PathBuf};

use super::*;
use crate::attention::{AnswerRows, DeltaMasses, MassObserver, Masses, NoObserver};
use crate::model::OpenModel;
use crate::span::Span;
use crate::transfer::count::{self, Copies};

const SAID: [u32; 3] = [5, 77, 130];
/// Cached tokens, and tokens of a chunk.
const BEFORE: usize = 150;
const CHUNK: usize = 1024;

/// Table rows: name, fixture, layer, and number of device syncs.
const LAYERS: [(&str, &str, usize, usize); 8] = [
    ("attention, gated block", "llama-tiny", 1, 0),
    ("the same with norms of queries and keys", "qwen3-tiny", 1, 0),
    ("a window of 23, sandwich norms", "gemma3-tiny", 1, 0),
    ("sinks, biases, 2 of 5 experts", "gpt-oss-tiny", 1, 1),
    ("2 of 5 experts", "qwen3-moe-tiny", 2, 1),
    ("2 of 6 experts and a shared one", "glm4-moe-tiny", 2, 1),
    ("gated attention", "qwen35-text-tiny", 2, 0),
    ("gated delta rule", "qwen35-text-tiny", 1, 0),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn decoder(name: &str, dtype: DType) -> Decoder {
    count::elsewhere(|| decoder_of_the_cpu(name, dtype))
}

fn decoder_of_the_cpu(name: &str, dtype: DType) -> Decoder {
    let folder: PathBuf = root().join("../../tests/fixtures").join(name);
    OpenModel::open(&[folder]).unwrap().load(&Device::Cpu, dtype).unwrap()
}

fn first_layers(name: &str, layers: usize) -> Decoder {
    let mut decoder = decoder(name, DType::BF16);
    decoder.layers.truncate(layers);
    decoder.spec.layers.truncate(layers);
    decoder.devices.truncate(layers);
    decoder
}

fn tokens(l: usize) -> Vec<u32> {
    (0..l as u32).map(|i| (i * 37 + i / 7 + 11) % 250).collect()
}

/// Copies of a forward pass of `l` tokens after `before`; with `masses`, includes finishing the masses.
fn of_forward(
    decoder: &Decoder,
    (before, l): (usize, usize),
    phase: Phase,
    mut observer: Option<MassObserver>,
    masses: bool,
) -> Result<Copies> {
    let mut cache = decoder.cache(before + l)?;
    let tokens = tokens(before + l);
    let mut forward = |tokens: &[u32], phase, observer: &mut Option<MassObserver>| match observer {
        Some(observer) => decoder.forward(tokens, 1, &mut cache, phase, observer),
        None => decoder.forward(tokens, 1, &mut cache, phase, &mut NoObserver),
    };
    count::elsewhere(|| forward(&tokens[..before], Phase::Prefill, &mut observer))?;
    let (done, copies) = count::counted(|| -> Result<()> {
        forward(&tokens[before..], phase, &mut observer)?;
        if let Some(observer) = observer.as_ref().filter(|_| masses) {
            observer.finish()?;
        }
        Ok(())
    });
    done.map(|()| copies)
}

/// Copies of layer `i`: a model with `i + 1` layers minus one with `i`.
fn of_layer(
    (name, i): (&str, usize),
    l: usize,
    phase: Phase,
    observer: Option<MassObserver>,
) -> Result<Copies> {
    let first = |layers| of_forward(&first_layers(name, layers), (BEFORE, l), phase, observer.clone(), false);
    let (with, without) = (first(i + 1)?, first(i)?);
    Ok(Copies { fetches: with.fetches - without.fetches, uploads: with.uploads - without.uploads })
}

fn observer() -> MassObserver {
    let tokens = BEFORE + CHUNK;
    let rows = vec![Span::new("early", 60..80), Span::new("late", tokens - 100..tokens)];
    let keys = (0..40).map(|i| Span::new(format!("{i}"), i * 29..(i + 1) * 29)).collect();
    MassObserver::new(rows, keys, tokens).unwrap()
}

/// Rewrites the table if PALIMPSEST_BLESS is set, else compares it.
#[test]
fn a_layers_copies_are_those_that_the_readme_of_the_benches_says_and_it_waits_only_to_route() -> Result<()> {
    let mut table = format!(
        "| layer | a chunk of {CHUNK} tokens: copies back | copies to | a token: copies back | copies to | \
         the observer's, of that chunk: copies back |\n"
    );
    table.push_str("| --- | --- | --- | --- | --- | --- |\n");
    for (called, name, i, waits) in LAYERS {
        let at = (name, i);
        let chunk = of_layer(at, CHUNK, Phase::Prefill, None)?;
        let token = of_layer(at, 1, Phase::Decode, None)?;
        let observed = of_layer(at, CHUNK, Phase::Prefill, Some(observer()))?;
        assert_eq!((chunk.fetches, token.fetches), (waits, waits), "{name}, layer {i}");
        assert_eq!(observed.fetches, waits, "{name}, layer {i}: the observer waits");
        table.push_str(&format!(
            "| {called} | {} | {} | {} | {} | {} |\n",
            chunk.fetches,
            chunk.uploads,
            token.fetches,
            token.uploads,
            observed.fetches - chunk.fetches,
        ));
    }
    let path = root().join("../../benches/README.md");
    let readme = std::fs::read_to_string(&path)?;
    let (begin, end) = ("<!-- begin: copies -->\n", "<!-- end: copies -->");
    let (Some(start), Some(stop)) = (readme.find(begin), readme.find(end)) else {
        panic!("no markers in {path:?}")
    };
    let start = start + begin.len();
    if std::env::var_os("PALIMPSEST_BLESS").is_some() {
        std::fs::write(&path, format!("{}{table}{}", &readme[..start], &readme[stop..]))?;
        return Ok(());
    }
    assert_eq!(
        &readme[start..stop],
        table,
        "benches/README.md is out of date; PALIMPSEST_BLESS=1 cargo test --release --workspace a_layers_copies rewrites it"
    );
    Ok(())
}

#[test]
fn what_was_observed_comes_back_in_one_copy_for_each_kind_of_layer() -> Result<()> {
    for (name, copies) in [("llama-tiny", 1), ("gpt-oss-tiny", 1), ("qwen35-text-tiny", 2)] {
        let decoder = decoder(name, DType::BF16);
        let fetches = |masses| -> Result<usize> {
            Ok(of_forward(&decoder, (BEFORE, CHUNK), Phase::Prefill, Some(observer()), masses)?.fetches)
        };
        assert_eq!(fetches(true)? - fetches(false)?, copies, "{name}");
    }
    Ok(())
}

#[test]
fn a_forward_on_another_device_computes_what_the_cpu_does_and_observes_the_same() -> Result<()> {
    let names = [
        "llama-tiny",
        "llama3-rope-tiny",
        "qwen2-tiny",
        "qwen3-tiny",
        "qwen3-moe-tiny",
        "qwen35-text-tiny",
        "gpt-oss-tiny",
        "glm4-moe-tiny",
        "minimax-m2-tiny",
        "gemma3-tiny",
        "gemma4-tiny",
        "gemma4-moe-nested-tiny",
    ];
    for name in names {
        let run = |decoder: &Decoder| -> Result<(Vec<f32>, Vec<Masses>)> {
            let mut cache = decoder.cache(BEFORE + CHUNK + SAID.len())?;
            let observer = || {
                self::observer().answering(AnswerRows { mean: Some(1), each: true, ..AnswerRows::default() })
            };
            let mut of_prompt = observer();
            let tokens = tokens(BEFORE + CHUNK);
            let mut logits = Vec::new();
            for (i, chunk) in tokens.chunks(500).enumerate() {
                let hidden = decoder.forward(chunk, 3, &mut cache, Phase::Prefill, &mut of_prompt)?;
                logits.extend(decoder.logits(&hidden, Phase::Prefill)?.flatten_all()?.to_vec1::<f32>()?);
                if i == 0 {
                    // A fork keeps earlier masses and may have other spans later.
                    of_prompt = of_prompt.keeping(500).fork(&observer(), 500).unwrap();
                }
            }
            // Decode in two branches and in place, with separate answer rows.
            let mut of_branches = [of_prompt.clone(), of_prompt.clone()];
            let mut branches = [cache.branch(900, SAID.len())?, cache.branch(900, SAID.len())?];
            for token in SAID {
                let rows = branches.iter_mut().zip(&mut of_branches);
                let rows = rows.map(|(branch, observer)| (branch, Pass::from(observer))).collect();
                let hidden = decoder.forward_groups(&[token, token + 1], vec![(&cache, rows)])?;
                logits.extend(decoder.logits(&hidden, Phase::Decode)?.flatten_all()?.to_vec1::<f32>()?);
            }
            for token in SAID {
                let hidden = decoder.forward(&[token], 1, &mut cache, Phase::Decode, &mut of_prompt)?;
                logits.extend(decoder.logits(&hidden, Phase::Decode)?.flatten_all()?.to_vec1::<f32>()?);
            }
            let [first, second] = &of_branches;
            let masses = [&of_prompt, first, second].map(|observer| observer.finish_after(SAID.len()));
            Ok((logits, masses.into_iter().collect::<Result<_>>()?))
        };
        let here = run(&decoder_of_the_cpu(name, DType::F32))?;
        let there = decoder(name, DType::F32);
        let there = count::elsewhere(|| run(&there))?;
        let apart = |a: &[f32], b: &[f32]| {
            assert_eq!(a.len(), b.len(), "{name}");
            a.iter()
                .zip(b)
                .map(|(a, b)| (a - b).abs())
                .fold(0f32, |most, x| if x.is_nan() { x } else { most.max(x) })
        };
        let logits = apart(&here.0, &there.0);
        assert!(logits < 1e-4, "{name}: logits are {logits:e} apart");
        let flat = |masses: &Vec<Masses>| -> Vec<f32> {
            let of_delta = |delta: &Option<DeltaMasses>| -> Vec<f32> {
                delta.iter().flat_map(|delta| delta.signed.iter().chain(&delta.share)).copied().collect()
            };
            let of_one = |masses: &Masses| -> Vec<f32> {
                let each = masses.each.iter().flat_map(|each| {
                    each.mass.iter().chain(each.sink.iter().flatten()).copied().chain(of_delta(&each.delta))
                });
                let rows = masses.mass.iter().chain(masses.sink.iter().flatten()).copied();
                rows.chain(of_delta(&masses.delta)).chain(each).collect()
            };
            masses.iter().flat_map(of_one).collect()
        };
        let (here, there) = (flat(&here.1), flat(&there.1));
        let masses = apart(&here, &there);
        assert!(masses < 1e-5, "{name}: masses are {masses:e} apart");
        assert!(here.iter().any(|x| *x > 0.1), "{name}: nothing was observed");
    }
    Ok(())
}
