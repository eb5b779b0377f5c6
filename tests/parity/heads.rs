//! Head scores against their definitions on single-key weights.

use ndarray::Array2;
use palimpsest::heads::score::{Answering, NeedleScores, Planted, read};
use palimpsest_core::attention::TopKeys;
use palimpsest_core::engine::Engine;

use super::{engine, fixture, session};

/// Weight of each visible key, by softmax layer, head and row.
fn weights(engine: &Engine, tokens: &[u32], rows: Vec<usize>) -> Vec<Vec<Vec<Vec<f32>>>> {
    let mut cache = engine.decoder().cache(tokens.len()).unwrap();
    let mut all = TopKeys::new(tokens.len(), rows);
    engine.fill_cache(&mut cache, tokens, &mut all, &mut |_| true).unwrap();
    let found = all.finish().unwrap();
    let [layers, heads, rows, k] = found.shape;
    let row = |at: usize| {
        let mut row = vec![0f32; tokens.len()];
        for i in at * k..(at + 1) * k {
            if let Some(place) = row.get_mut(found.keys[i] as usize) {
                *place = found.weights[i];
            }
        }
        row
    };
    let of_head = |at: usize| (0..rows).map(|r| row(at * rows + r)).collect();
    (0..layers).map(|l| (0..heads).map(|h| of_head(l * heads + h)).collect()).collect()
}

#[test]
fn scores_are_what_the_weights_of_single_keys_give_by_definition() {
    let mut some_copied = 0;
    // Full attention, windows, sinks with windows, linear layers beside softmax ones.
    for name in ["llama-tiny", "gemma3-tiny", "gpt-oss-tiny", "qwen35-text-tiny"] {
        let engine = engine(&fixture(name), 48);
        let tokens: Vec<u32> = (0..150u32).map(|i| (i * i * 7 + i * 13 + 5) % 251).collect();
        let (history, null) = (&tokens[..130], [9, 4, 2, 8, 8]);
        let planted = Planted {
            query: 130..142,
            gold: 90..125,
            // The whole history, so that it contains some of a random model's output.
            answer: 0..130,
            null_tokens: [history, &null].concat(),
            null_query: 131..134,
            tokens: tokens.clone(),
        };
        let answering = Answering { max_new_tokens: 24, stop: &[] };
        let mut session = session(&engine, 200, (1, 0));
        let found = read(&mut session, &planted, answering, &mut |_| true).unwrap();
        let NeedleScores { layers, generated, recall, copied, qr } = found;
        assert_eq!(generated.len(), 24);
        if name == "qwen35-text-tiny" {
            assert_eq!(layers, [2], "the one softmax layer");
        }

        let whole = [&tokens[..], &generated[..23]].concat();
        let asked = weights(&engine, &whole, planted.query.clone().collect());
        let nothing = weights(&engine, &planted.null_tokens, planted.null_query.clone().collect());
        let said = weights(&engine, &whole, (149..149 + 24).collect());
        let mass = |rows: &[Vec<f32>]| {
            let of_row =
                |row: &Vec<f32>| row[planted.gold.clone()].iter().map(|&w| f64::from(w)).sum::<f64>();
            rows.iter().map(of_row).sum::<f64>() / rows.len() as f64
        };
        let expected = Array2::from_shape_fn(qr.dim(), |(l, h)| mass(&asked[l][h]) - mass(&nothing[l][h]));
        assert!((&expected - &qr).iter().all(|d| d.abs() < 1e-5), "{name}: {qr} is not {expected}");
        assert!(qr.iter().any(|x| x.abs() > 1e-3), "{name}: {qr}");

        let share = Array2::from_shape_fn(copied.dim(), |(l, h)| {
            let mut places = std::collections::BTreeSet::new();
            for (row, &token) in said[l][h].iter().zip(&generated) {
                let best = row.iter().copied().fold(0.0, f32::max);
                let key = row.iter().position(|&w| w == best).unwrap();
                if key < 130 && tokens[key] == token {
                    places.insert(key);
                }
            }
            places.len() as f64 / 130.0
        });
        assert_eq!(share, copied, "{name}");
        some_copied += copied.iter().filter(|x| **x > 0.0).count();
        let found = planted.answer.clone().filter(|&at| generated.contains(&tokens[at])).count();
        assert!(recall <= found as f64 / 130.0 && (recall > 0.0) == (found > 0), "{name}: {recall}");
    }
    assert!(some_copied > 0, "no head of any model copies anything: the test tells nothing");
}
