//! Evictions of the engine: rows from the question on see what was kept, in prefill, decode, scores and masses.

use palimpsest_core::attention::{AnswerRows, Hole, LayerHoles};
use palimpsest_core::engine::{
    Backend, Branch, Measured, Observe, Request, RequestError, Rows, Session, Task,
};
use palimpsest_core::evict::Eviction;
use palimpsest_core::span::Span;

use super::evict::POLICIES;
use super::{answering, engine, fixture, session};

/// Longer than every policy's window, and than the windows of windowed layers.
const SHARED: usize = 150;
/// The first row after the eviction.
const AT: usize = 156;
const PROMPT: usize = 171;
const SESSIONS: [(usize, usize); 3] = [(10, 50), (50, 110), (110, 148)];

fn prompt(question: usize) -> Vec<u32> {
    let token = |i: usize| 3 + ((if i < AT { i } else { i + 1000 * question }) * 7919 % 61) as u32;
    (0..PROMPT).map(token).collect()
}

fn spans() -> Vec<Span> {
    let mut spans = vec![Span::new("system", 0..10)];
    for (nth, (start, end)) in SESSIONS.into_iter().enumerate() {
        let span = Span::new(format!("session[{nth}]"), start..end);
        spans.push(if nth == 1 { span.with_role("new") } else { span });
    }
    spans.extend([Span::new("template[0]", 148..AT), Span::new("query", AT..165).with_role("query")]);
    spans.push(Span::new("template[1]", 165..PROMPT));
    spans
}

fn eviction(text: &str) -> Eviction {
    Eviction { evict: text.parse().unwrap(), at: AT, spans: spans(), seed: 7 }
}

/// A branch for the prompt of a question, with masses of the new session, the query, the last position and the answer.
fn branch(question: usize, shared: usize, evict: Option<&str>) -> Branch {
    let row = |label: &str| spans().into_iter().find(|span| span.label == label).unwrap();
    let mut rows = Rows { spans: vec![row("session[1]"), row("query")], answer: AnswerRows::default() };
    rows.answer.mean = Some(2);
    rows.answer.each = true;
    Branch {
        tokens: prompt(question)[shared..].to_vec(),
        evict: evict.map(eviction),
        observe: Observe { rows, keys: spans(), ..Observe::default() },
        tasks: vec![answering(6, &[]), Task::Score(vec![vec![5, 9, 11], vec![8]])],
        ..Branch::default()
    }
}

fn answers(session: &mut Session, shared: usize, branches: Vec<Branch>) -> Vec<[Measured; 2]> {
    let request = Request { prefix: prompt(0)[..shared].into(), branches, ..Request::default() };
    let outputs = session.answers(request, &mut |_, _, _| true);
    let both = |tasks: Vec<Result<Measured, RequestError>>| {
        let tasks: Vec<Measured> = tasks.into_iter().map(|task| task.unwrap()).collect();
        tasks.try_into().unwrap()
    };
    outputs.into_iter().map(both).collect()
}

fn alone(name: &str, shared: usize, branch: Branch) -> [Measured; 2] {
    let mut session = session(&engine(&fixture(name), 64), 400, (1, 20));
    answers(&mut session, shared, vec![branch]).remove(0)
}

/// Fails unless tokens are equal and numbers within `most`; `what` is named.
fn alike(found: &[Measured; 2], expected: &[Measured; 2], most: f32, what: &str) {
    let ([answer, scored], [of_answer, of_scored]) = (found, expected);
    assert_eq!(answer.generated.tokens, of_answer.generated.tokens, "{what}");
    let numbers = |one: &Measured| -> Vec<f32> {
        let each = one.masses.each.iter().flat_map(|each| &each.mass);
        one.logits.iter().chain(&one.masses.mass).chain(each).copied().collect()
    };
    let pairs = |found: &Measured, expected: &Measured| {
        let (found, expected) = (numbers(found), numbers(expected));
        assert_eq!(found.len(), expected.len(), "{what}");
        found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    let scores = scored.scores.iter().zip(&of_scored.scores).map(|(a, b)| (a.unwrap() - b.unwrap()).abs());
    let off = pairs(answer, of_answer).max(scores.fold(0.0, f64::max) as f32);
    assert!(off <= most, "{what}: off by {off:e}");
}

#[test]
fn a_policy_that_keeps_all_gives_the_bits_of_none() {
    for name in ["llama-tiny", "gemma3-tiny", "gemma4-tiny", "qwen35-text-tiny", "gpt-oss-tiny"] {
        let expected = alone(name, SHARED, branch(0, SHARED, None));
        for policy in POLICIES {
            let found = alone(name, SHARED, branch(0, SHARED, Some(&format!("{policy}:1.0"))));
            alike(&found, &expected, 0.0, &format!("{name} {policy}"));
            let shares = &found[0].kept.as_ref().unwrap().shares;
            assert!(shares.iter().all(|share| *share == 1.0 || share.is_nan()), "{name} {policy}");
        }
        assert!(expected[0].kept.is_none());
    }
}

#[test]
fn whole_sessions_that_are_evicted_are_hidden_as_a_knock_out_hides_them() {
    for name in ["llama-tiny", "qwen3-tiny", "gpt-oss-tiny", "gemma3-tiny", "gemma4-tiny", "qwen35-text-tiny"]
    {
        // The first two sessions go; 56 keys stay.
        let found = alone(name, SHARED, branch(0, SHARED, Some("oldest:60")));
        let engine = engine(&fixture(name), 64);
        let kinds = session(&engine, 400, (1, 20)).layer_kinds();
        let hole = Hole { rows: AT..usize::MAX, keys: 10..110 };
        let full = |layer: usize| {
            engine.decoder().spec().layers[layer].attention().is_some_and(|a| a.window.is_none())
        };
        let holes =
            (0..kinds.len()).filter(|&layer| full(layer)).fold(LayerHoles::default(), |all, layer| {
                all.joined(&LayerHoles::at_softmax(&(layer..layer + 1), &kinds, vec![hole.clone()]))
            });
        let hidden = Branch { knockouts: holes, ..branch(0, SHARED, None) };
        alike(&found, &alone(name, SHARED, hidden), 1e-5, name);
        let plain = alone(name, SHARED, branch(0, SHARED, None));
        assert!(plain[0].logits != found[0].logits, "{name}: nothing was evicted");
        // By layer, head and span: the whole of a span or nothing of it; NaN behind the eviction.
        for ((.., span), share) in found[0].kept.as_ref().unwrap().shares.indexed_iter() {
            match span {
                1 | 2 => assert_eq!(*share, 0.0),
                0 | 3 | 4 => assert_eq!(*share, 1.0),
                _ => assert!(share.is_nan()),
            }
        }
    }
}

#[test]
fn masses_of_what_is_kept_sum_to_one_and_those_of_evicted_keys_are_nothing() {
    for policy in POLICIES {
        for question in ["", "@question"] {
            let evict = format!("{policy}:0.5{question}");
            let [found, _] = alone("llama-tiny", SHARED, branch(0, SHARED, Some(&evict)));
            let kept = found.kept.as_ref().unwrap();
            for ((layer, head, row), sum) in found.masses.mass.sum_axis(ndarray::Axis(3)).indexed_iter() {
                // The answer also attends to generated tokens.
                let whole = if row < 2 { (sum - 1.0).abs() < 1e-5 } else { *sum <= 1.0 + 1e-5 };
                assert!(whole, "{evict}: layer {layer}, head {head}, row {row}: {sum}");
            }
            for ((layer, kv_head, span), share) in kept.shares.indexed_iter() {
                let group = found.masses.mass.dim().1 / kept.shares.dim().1;
                for head in kv_head * group..(kv_head + 1) * group {
                    let mass = found.masses.mass[[layer, head, 1, span]];
                    assert!(*share > 0.0 || share.is_nan() || mass == 0.0, "{evict}: {mass} on nothing");
                }
            }
            let all: f32 = (0..5).map(|s| kept.shares[[0, 0, s]] * spans()[s].len() as f32).sum();
            assert!(all <= AT as f32 * 0.5 && all > 0.0, "{evict}: {all} keys stay");
        }
    }
}

#[test]
fn evictions_of_one_request_give_what_each_gives_alone() {
    for name in ["llama-tiny", "gemma3-tiny", "gemma4-tiny", "qwen35-text-tiny"] {
        let asked = [
            (0, None),
            (1, Some("snapkv:0.5")),
            (0, Some("snapkv:0.5")),
            (1, Some("snapkv:0.25@question")),
            (0, Some("snapkv:0.25@question")),
            (0, Some("h2o:0.5")),
            (1, Some("expected-attention:0.5@question")),
            (0, Some("random:40")),
        ];
        let branches = || asked.map(|(question, evict)| branch(question, SHARED, evict)).into();
        let mut session = session(&engine(&fixture(name), 64), 400, (asked.len(), 20));
        let first = answers(&mut session, SHARED, branches());
        // Of the cached prefix too.
        let again = answers(&mut session, SHARED, branches());
        for (((question, evict), first), again) in asked.into_iter().zip(&first).zip(&again) {
            let what = format!("{name}, question {question}, {evict:?}");
            let expected = alone(name, SHARED, branch(question, SHARED, evict));
            alike(first, &expected, 0.0, &what);
            alike(again, &expected, 0.0, &what);
        }
        // A prompt that shares no prefix has its history evicted all the same.
        let whole = alone(name, 0, branch(1, 0, Some("snapkv:0.5")));
        alike(&whole, &first[1], 1e-5, name);
        assert!(first[1][0].logits != first[3][0].logits, "{name}");
    }
}

#[test]
fn evictions_that_cannot_be_served_are_refused_by_name() {
    let engine = engine(&fixture("llama-tiny"), 64);
    let mut session = session(&engine, 400, (1, 20));
    let mut refused = |branch: Branch| {
        let request =
            Request { prefix: prompt(0)[..SHARED].into(), branches: vec![branch], ..Request::default() };
        let mut outputs = session.answers(request, &mut |_, _, _| true);
        outputs.remove(0).remove(0).unwrap_err().to_string()
    };
    let norms = branch(0, SHARED, Some("knorm:0.5"));
    let observe = Observe { norms: true, ..norms.observe.clone() };
    let err = refused(Branch { observe, ..norms });
    assert!(err.contains("knorm:0.5") && err.contains("norms"), "{err}");
    let err =
        refused(Branch { tasks: vec![Task::Force([4, 5].into())], ..branch(0, SHARED, Some("knorm:0.5")) });
    assert!(err.contains("forced"), "{err}");
    let early = Eviction { at: 20, ..eviction("knorm:0.5") };
    let err = refused(Branch { evict: Some(early), ..branch(0, SHARED, None) });
    assert!(err.contains("20"), "{err}");
    let hole = Hole { rows: AT..usize::MAX, keys: 10..20 };
    let holes = LayerHoles::at_softmax(&(0..1), &session_kinds(&engine), vec![hole]);
    let err = refused(Branch { knockouts: holes, ..branch(0, SHARED, Some("knorm:0.5")) });
    assert!(err.contains("knock-outs"), "{err}");
}

#[test]
fn evictions_are_refused_by_name_where_rows_choose_keys_themselves() {
    for name in ["deepseek-v32-tiny", "glm-moe-dsa-tiny"] {
        let mut session = session(&engine(&fixture(name), 64), 400, (1, 20));
        let branches = vec![branch(0, SHARED, Some("knorm:0.5"))];
        let request = Request { prefix: prompt(0)[..SHARED].into(), branches, ..Request::default() };
        let mut outputs = session.answers(request, &mut |_, _, _| true);
        let err = outputs.remove(0).remove(0).unwrap_err().to_string();
        assert!(err.contains("knorm:0.5") && err.contains("choose among all keys"), "{name}: {err}");
    }
}

fn session_kinds(engine: &palimpsest_core::engine::Engine) -> Vec<palimpsest_core::attention::LayerKind> {
    session(engine, 400, (1, 20)).layer_kinds()
}
