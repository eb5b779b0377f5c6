//! Repaired caches: after an edit of a cached history, some of its rows are read again and the rest stay as they were.
//!
//! Read again are the edited rows and those later ones that attended most to them (as CacheBlend chooses rows by their deviation, arXiv
//! 2405.16444), by mass summed over layers and heads in the plain reading. The history has a cache of its own, since rows inside it are
//! overwritten, which the engine thread's shared caches must not be; after each reading they are put back.

use std::ops::Range;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use super::{Engine, EngineError, RequestError, Session};
use crate::attention::{LayerHoles, LayerKind, RowMasses};
use crate::model::Cache;

/// Rows behind an edit that a repair reads again. In JSON a number, or null for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LaterRows {
    /// At most this many: those with the largest mass on the edited tokens, earlier ones first among equals.
    Most(usize),
    /// All: an exact prefill of the edited history.
    All,
}

/// A history that was read plainly, to be repaired after edits ([`Session::repairing`]).
#[derive(Debug)]
pub struct Repairing {
    engine: Engine,
    cache: Cache,
    edited: Vec<Range<usize>>,
    masses: RowMasses,
}

/// Fails with [`RequestError::Refused`], which names the layer, unless all layers keep all keys.
pub fn check_repairable(kinds: &[LayerKind]) -> Result<(), RequestError> {
    let lacks = |(layer, kind): (usize, &LayerKind)| match kind {
        LayerKind::Softmax { window: None, .. } => None,
        LayerKind::Softmax { window: Some(window), .. } => {
            Some(format!("layer {layer} keeps the keys of its window of {window} tokens only"))
        }
        LayerKind::Linear => Some(format!("layer {layer} is a linear-attention layer, which keeps no keys")),
    };
    match kinds.iter().enumerate().find_map(lacks) {
        None => Ok(()),
        Some(lacks) => Err(RequestError::Refused(format!(
            "{lacks}, so rows inside a history cannot be read again; a repair needs a model whose layers all keep all keys (Llama, \
             SmolLM2, Qwen 2.5, Qwen 3)"
        ))),
    }
}

impl Session {
    /// Reads a history into a cache of its own, with room for `room` more tokens, and measures the mass of its rows on each range of
    /// `edited`. Clears the session's cached prompts first, so that one history is held. `go_on` gets prefilled tokens; false stops.
    pub fn repairing(
        &mut self,
        history: &[u32],
        room: usize,
        edited: Vec<Range<usize>>,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Repairing, RequestError> {
        self.forget();
        let engine = self.engine().clone();
        check_repairable(&engine.decoder().spec().layer_kinds())?;
        let mut cache = engine.decoder().cache(history.len() + room)?;
        let mut masses = RowMasses::new(edited.clone(), history.len());
        engine.fill_cache(&mut cache, history, &mut masses, go_on)?;
        Ok(Repairing { engine, cache, edited, masses })
    }
}

impl Repairing {
    /// Ascending positions that a repair after the `nth` edit reads again: the edited ones and the later ones.
    pub fn rows(&self, nth: usize, later: LaterRows) -> Vec<usize> {
        let Some(edited) = self.edited.get(nth).cloned() else { return Vec::new() };
        let masses = self.masses.of(nth);
        let mut behind: Vec<usize> = (edited.end..self.cache.len()).collect();
        if let LaterRows::Most(most) = later {
            // A stable sort: earlier rows stay before later ones of equal mass.
            behind.sort_by(|a, b| masses[*b].total_cmp(&masses[*a]));
            behind.truncate(most);
            behind.sort_unstable();
        }
        edited.chain(behind).collect()
    }

    /// Reads `rows` of the edited history `tokens` again; then, after the whole history, each of `readings`: the rest of a prompt and the
    /// tokens forced behind it. `take` gets the reading, the index of the first forced token, and logits f32 (n, vocab) that predict the
    /// forced tokens from there on. The history is as it was afterwards. `go_on` gets rows read again; false stops.
    pub fn read(
        &mut self,
        (rows, tokens): (&[usize], &[u32]),
        readings: &[(&[u32], &[u32])],
        go_on: &mut dyn FnMut(usize) -> bool,
        take: &mut dyn FnMut(usize, usize, &Tensor) -> candle_core::Result<()>,
    ) -> Result<(), RequestError> {
        let saved = self.cache.save_rows(rows)?;
        let mut taken = Ok(());
        let read = self.read_over(rows, tokens, go_on).and_then(|()| {
            let plain = [LayerHoles::default()];
            readings.iter().enumerate().try_for_each(|(nth, &(rest, forced))| {
                let before = &forced[..forced.len().saturating_sub(1)];
                let tokens = [rest, before].concat();
                let mut of_reading = |_: usize, first, logits: Tensor| {
                    if taken.is_ok() {
                        taken = take(nth, first, &logits);
                    }
                };
                let wanted = (&*tokens, forced.len());
                self.engine.read_variants(&mut self.cache, wanted, &plain, &mut of_reading)
            })
        });
        self.cache.put_back(&saved)?;
        read?;
        Ok(taken?)
    }

    fn read_over(
        &mut self,
        rows: &[usize],
        tokens: &[u32],
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), EngineError> {
        let mut done = 0;
        while done < rows.len() {
            let end = self.engine.next_border(done, rows.len(), self.engine.chunk());
            let part = &rows[done..end];
            let of_part: Vec<u32> = part.iter().map(|row| tokens[*row]).collect();
            self.engine.decoder().forward_rows(&of_part, part, &mut self.cache)?;
            done = end;
            if !go_on(part.len()) {
                return Err(EngineError::Interrupted);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use candle_core::{DType, Device};

    use super::*;
    use crate::attention::NoObserver;
    use crate::engine::thread::Limits;
    use crate::model::{OpenModel, Phase};

    const CHUNK: usize = 16;
    /// More than a chunk, and blocks of keys of the decode kernel.
    const TOKENS: usize = 300;

    fn session(name: &str) -> Session {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name);
        let decoder = OpenModel::open(&[fixture]).unwrap().load(&Device::Cpu, DType::F32);
        let engine = Engine::new(decoder.unwrap(), CHUNK);
        let cache = engine.decoder().cache(TOKENS + 50).unwrap();
        Session::new(engine, cache, Limits::of_context(TOKENS + 50))
    }

    fn history() -> Vec<u32> {
        (0..TOKENS as u32).map(|i| (i * 37 + i / 7 + 11) % 250).collect()
    }

    const EDITED: Range<usize> = 40..61;

    fn edited() -> Vec<u32> {
        let mut tokens = history();
        EDITED.for_each(|at| tokens[at] = (tokens[at] + 91) % 250);
        tokens
    }

    const REST: [u32; 5] = [3, 77, 5, 21, 8];
    const FORCED: [u32; 3] = [9, 14, 2];

    fn logits(repairing: &mut Repairing, rows: &[usize], tokens: &[u32]) -> Vec<Vec<f32>> {
        let mut read = Vec::new();
        let mut take = |_: usize, first: usize, logits: &Tensor| {
            assert_eq!(first, read.len());
            read.extend(logits.to_vec2::<f32>()?);
            Ok(())
        };
        repairing.read((rows, tokens), &[(&REST, &FORCED)], &mut |_| true, &mut take).unwrap();
        read
    }

    /// Every layer's keys and values, by bits.
    fn bits(cache: &Cache, layers: usize) -> Vec<u32> {
        let all = (0..layers).flat_map(|layer| {
            let (k, v) = cache.before(layer, cache.len()).unwrap().unwrap();
            [k, v].map(|x| x.flatten_all().unwrap().to_vec1::<f32>().unwrap())
        });
        all.flatten().map(f32::to_bits).collect()
    }

    #[test]
    fn all_rows_read_again_are_an_exact_prefill_and_the_cache_is_then_as_before() {
        for name in ["llama-tiny", "qwen3-tiny"] {
            let mut session = session(name);
            let mut repairing = session.repairing(&history(), 20, vec![EDITED], &mut |_| true).unwrap();
            let layers = session.engine().decoder().spec().layers.len();
            let before = bits(&repairing.cache, layers);
            let plain = logits(&mut repairing, &[], &history());
            assert_eq!(plain.len(), FORCED.len());

            let mut exact = session.repairing(&edited(), 20, vec![EDITED], &mut |_| true).unwrap();
            let expected = logits(&mut exact, &[], &edited());
            assert_ne!(plain, expected, "{name}");
            let mut counts = Vec::new();
            let mut apart = Vec::new();
            for later in [0, 16, 64].map(LaterRows::Most).into_iter().chain([LaterRows::All]) {
                let rows = repairing.rows(0, later);
                let found = logits(&mut repairing, &rows, &edited());
                let off = |(a, b): (&f32, &f32)| (a - b).abs();
                apart.push(found.concat().iter().zip(&expected.concat()).map(off).fold(0.0, f32::max));
                assert!(
                    found != plain && (found == expected) == (later == LaterRows::All),
                    "{name} {later:?}"
                );
                assert_eq!(bits(&repairing.cache, layers), before, "{name} {later:?}");
                counts.push(rows.len());
            }
            assert_eq!(counts, [21, 37, 85, TOKENS - 40], "{name}");
            assert_eq!(apart[3], 0.0);
            // The keys, too, until they are put back.
            let all = repairing.rows(0, LaterRows::All);
            repairing.read_over(&all, &edited(), &mut |_| true).unwrap();
            assert_eq!(bits(&repairing.cache, layers), bits(&exact.cache, layers), "{name}");
        }
    }

    #[test]
    fn a_scattered_row_sees_the_cache_as_it_stands_and_leaves_all_other_rows() {
        let mut session = session("llama-tiny");
        let mut repairing = session.repairing(&history(), 20, vec![EDITED], &mut |_| true).unwrap();
        let engine = session.engine().clone();
        let layers = engine.decoder().spec().layers.len();
        let part = |cache: &Cache, layer: usize, first: usize, rows: usize| -> Vec<f32> {
            let (k, v) = cache.before(layer, cache.len()).unwrap().unwrap();
            let part = |x: Tensor| x.narrow(1, first, rows).unwrap().flatten_all().unwrap();
            [part(k), part(v)].iter().flat_map(|x| x.to_vec1::<f32>().unwrap()).collect()
        };
        // By definition: the row appended to the first 100 tokens as another token, alone.
        let mut alone = engine.decoder().cache(TOKENS).unwrap();
        engine.fill_cache(&mut alone, &history()[..100], &mut NoObserver, &mut |_| true).unwrap();
        let mut tokens = history();
        tokens[100] = (tokens[100] + 7) % 250;
        engine.decoder().forward(&[tokens[100]], 1, &mut alone, Phase::Prefill, &mut NoObserver).unwrap();
        let before = bits(&repairing.cache, layers);
        let saved = repairing.cache.save_rows(&[100]).unwrap();
        let plain: Vec<_> = (0..layers).map(|layer| part(&repairing.cache, layer, 100, 1)).collect();
        repairing.read_over(&[100], &tokens, &mut |_| true).unwrap();
        for (layer, plain) in plain.iter().enumerate() {
            assert_eq!(part(&repairing.cache, layer, 100, 1), part(&alone, layer, 100, 1), "layer {layer}");
            assert_ne!(part(&repairing.cache, layer, 100, 1), *plain, "layer {layer}");
        }
        repairing.cache.put_back(&saved).unwrap();
        assert_eq!(bits(&repairing.cache, layers), before);

        // Two rows together: the later one sees the earlier one's new keys, and no other row of the cache changes.
        repairing.read_over(&[100, 200], &tokens, &mut |_| true).unwrap();
        let mut by_turns = session.repairing(&history(), 20, Vec::new(), &mut |_| true).unwrap();
        by_turns.read_over(&[100], &tokens, &mut |_| true).unwrap();
        by_turns.read_over(&[200], &tokens, &mut |_| true).unwrap();
        for layer in 0..layers {
            for row in [100, 200] {
                let both = part(&repairing.cache, layer, row, 1);
                let apart = both.iter().zip(part(&by_turns.cache, layer, row, 1)).map(|(a, b)| (a - b).abs());
                assert!(apart.fold(0.0, f32::max) < 1e-5, "layer {layer}, row {row}");
            }
            for (first, rows) in [(0, 100), (101, 99), (201, TOKENS - 201)] {
                let stays = part(&by_turns.cache, layer, first, rows);
                assert_eq!(part(&repairing.cache, layer, first, rows), stays, "layer {layer}, from {first}");
            }
        }
    }

    #[test]
    fn rows_are_chosen_by_mass_and_earlier_ones_first_among_equals() {
        let mut session = session("llama-tiny");
        let mut repairing = session.repairing(&history(), 20, vec![EDITED, 10..12], &mut |_| true).unwrap();
        let masses = repairing.masses.of(0).to_vec();
        let chosen = repairing.rows(0, LaterRows::Most(5));
        assert_eq!(chosen[..EDITED.len()], EDITED.collect::<Vec<_>>());
        let later = &chosen[EDITED.len()..];
        let least = later.iter().map(|row| masses[*row]).fold(f64::INFINITY, f64::min);
        let others = (EDITED.end..TOKENS).filter(|row| !later.contains(row));
        assert!(least > 0.0 && others.map(|row| masses[row]).all(|mass| mass <= least));
        // A row's masses over all spans that tile what it sees are layers times heads.
        let (spec, n) = (session.engine().decoder().spec().clone(), TOKENS);
        let all = session.repairing(&history(), 1, vec![0..50, 50..n], &mut |_| true).unwrap();
        let heads: usize = spec.layers.iter().filter_map(|l| l.attention()).map(|a| a.heads).sum();
        assert!((all.masses.of(0)[n - 1] + all.masses.of(1)[n - 1] - heads as f64).abs() < 1e-3);
        repairing.masses = RowMasses::new(vec![EDITED], TOKENS);
        assert_eq!(repairing.rows(0, LaterRows::Most(2))[EDITED.len()..], [61, 62]);
        assert_eq!(repairing.rows(0, LaterRows::Most(TOKENS)), repairing.rows(0, LaterRows::All));
    }

    #[test]
    fn layers_that_do_not_keep_all_keys_are_refused_and_an_interruption_leaves_the_cache() {
        for (name, what) in [("gemma3-tiny", "window of"), ("qwen35-text-tiny", "linear-attention layer")] {
            let refused = session(name).repairing(&history(), 1, vec![EDITED], &mut |_| true).unwrap_err();
            let said = refused.to_string();
            assert!(said.contains(what) && said.contains("keep all keys"), "{name}: {said}");
        }
        let mut session = session("llama-tiny");
        let mut repairing = session.repairing(&history(), 20, vec![EDITED], &mut |_| true).unwrap();
        let layers = session.engine().decoder().spec().layers.len();
        let before = bits(&repairing.cache, layers);
        let rows = repairing.rows(0, LaterRows::All);
        let readings: [(&[u32], &[u32]); 1] = [(&REST, &FORCED)];
        let stopped = repairing.read((&rows, &edited()), &readings, &mut |_| false, &mut |_, _, _| {
            panic!("nothing is read after an interruption")
        });
        assert!(matches!(stopped, Err(RequestError::Engine(EngineError::Interrupted))));
        assert_eq!(bits(&repairing.cache, layers), before);
    }
}
