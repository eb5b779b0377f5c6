//! Head scores on one needle.
//!
//! Prefills the prompt up to the question once; null question and question are branches, and the question is answered greedily. A second
//! pass over question and answer finds the key of largest weight per row. Works on tokens only.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array2, s};
use palimpsest_core::attention::LargestKeys;
use palimpsest_core::engine::{
    Branch, Event, Generate, Measured, Observe, Request, RequestError, Reuse, Rows, Sampling, Session, Task,
    TopRequest,
};
use palimpsest_core::span::Span;

/// A prompt with a needle, and the same prompt with the null question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planted {
    pub tokens: Vec<u32>,
    pub query: Range<usize>,
    pub gold: Range<usize>,
    pub answer: Range<usize>,
    pub null_tokens: Vec<u32>,
    pub null_query: Range<usize>,
}

#[derive(Debug, Clone, Copy)]
pub struct Answering<'a> {
    pub max_new_tokens: usize,
    pub stop: &'a [u32],
}

#[derive(Debug, Clone, PartialEq)]
pub struct NeedleScores {
    /// Decoder layers with softmax attention: the first axis of both scores.
    pub layers: Vec<usize>,
    pub generated: Vec<u32>,
    /// Share of the needle's tokens in the answer, counted with multiplicity.
    pub recall: f64,
    /// (layers, heads): share of the needle's tokens that the head copies ([`copied`]).
    pub copied: Array2<f64>,
    /// (layers, heads): mass of the question on the session minus that of the null question.
    pub qr: Array2<f64>,
}

/// Scores one needle; prompt and answer must fit the context. `progress` receives tokens read and generated and returns whether to
/// continue.
pub fn read(
    session: &mut Session,
    planted: &Planted,
    answering: Answering<'_>,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<NeedleScores, RequestError> {
    let Planted { tokens, null_tokens, query, null_query, gold, answer } = planted;
    let alike = tokens.iter().zip(null_tokens).take_while(|(a, b)| a == b).count();
    let shared = alike.min(query.start).min(null_query.start);
    let prefix: Arc<[u32]> = tokens[..shared].into();

    let Answering { max_new_tokens, stop } = answering;
    let generate = Generate::new(Sampling::greedy(max_new_tokens), stop.to_vec());
    let branch = |tokens: &[u32], query: &Range<usize>, task: Task| Branch {
        tokens: tokens[shared..].to_vec(),
        observe: Observe {
            rows: Rows { spans: vec![Span::new("query", query.clone())], ..Rows::default() },
            keys: vec![Span::new("gold", gold.clone())],
            // Linear-attention layers have no per-key weights.
            softmax_only: true,
            ..Observe::default()
        },
        tasks: vec![task],
        ..Branch::default()
    };
    let branches = vec![
        branch(null_tokens, null_query, Task::Read),
        branch(tokens, query, Task::Generate(Box::new(generate))),
    ];
    let request = Request { prefix: Arc::clone(&prefix), reuse: Reuse::Prefix, branches };
    let mut heard = |event: &Event| match event {
        Event::Prefilled(tokens) => progress(*tokens),
        Event::Token(_) => progress(1),
        _ => true,
    };
    let mut answered = session.answers(request, &mut |_, _, event| heard(event)).into_iter().flatten();
    let (Some(null), Some(asked)) = (answered.next(), answered.next()) else {
        return Err(RequestError::Gone);
    };
    let (null, asked) = (null?, asked?);
    let mass = |measured: &Measured| measured.masses.mass.slice(s![.., .., 0, 0]).mapv(f64::from);
    let generated = asked.generated.tokens.clone();

    let none = || Array2::zeros(mass(&asked).dim());
    let copied = match generated.split_last() {
        None => none(),
        Some((_, before)) => {
            let last = tokens.len().saturating_sub(1);
            let rows = vec![Span::new("answer", last..last + generated.len())];
            let observe = Observe {
                rows: Rows { spans: rows, ..Rows::default() },
                top_keys: Some(TopRequest { k: 1, mean: false }),
                softmax_only: true,
                ..Observe::default()
            };
            let again = [&tokens[shared..], before].concat();
            let branch = Branch { tokens: again, observe, tasks: vec![Task::Read], ..Branch::default() };
            let request = Request { prefix, reuse: Reuse::Prefix, branches: vec![branch] };
            let read = session.answer(request, &mut heard)?;
            read.top_keys.map_or_else(none, |largest| copied(&largest, tokens, answer, &generated))
        }
    };
    let recall = recall(&tokens[answer.clone()], &generated);
    let (layers, qr) = (asked.masses.layers.clone(), mass(&asked) - mass(&null));
    Ok(NeedleScores { layers, generated, recall, copied, qr })
}

/// (layers, heads): share of the tokens at `answer` that a head copies into `generated`. A token is copied if the head's largest weight is
/// on it while the model generates that token; repeats count once. `largest` has the rows that predicted `generated`, in order.
pub fn copied(
    largest: &LargestKeys,
    prompt: &[u32],
    answer: &Range<usize>,
    generated: &[u32],
) -> Array2<f64> {
    let [layers, heads, rows, k] = largest.shape;
    Array2::from_shape_fn((layers, heads), |(layer, head)| {
        let mut places = vec![false; answer.len()];
        for (row, token) in generated.iter().enumerate().take(rows) {
            let at = ((layer * heads + head) * rows + row) * k;
            let Some(&key) = largest.keys.get(at) else { continue };
            let key = key as usize;
            if answer.contains(&key) && prompt.get(key) == Some(token) {
                places[key - answer.start] = true;
            }
        }
        places.iter().filter(|copied| **copied).count() as f64 / answer.len().max(1) as f64
    })
}

pub fn recall(needle: &[u32], generated: &[u32]) -> f64 {
    let mut left = generated.to_vec();
    let found = needle
        .iter()
        .filter(|token| left.iter().position(|one| one == *token).map(|at| left.swap_remove(at)).is_some());
    found.count() as f64 / needle.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_counts_as_copied_where_the_largest_key_is_that_token_inside_the_needle() {
        let prompt = [9, 5, 6, 5, 7, 8];
        let largest = LargestKeys {
            layers: vec![3],
            rows: vec![5, 6, 7, 8],
            shape: [1, 2, 4, 1],
            keys: vec![1, 2, 3, 1, /* the second head */ 2, 1, 4, 4],
            weights: vec![1.0; 8],
        };
        // Head 0 copies 5 from 1 and 6 from 2; key 3 does not hold 7; the second 5 counts once. Head 1 attends to 6 for 5, to 5 for 6, and
        // twice to 7, which is outside.
        let shares = copied(&largest, &prompt, &(1..4), &[5, 6, 7, 5]);
        assert_eq!(shares, ndarray::array![[2.0 / 3.0, 0.0]]);
        assert_eq!(copied(&largest, &prompt, &(1..5), &[5, 6, 7, 7]), ndarray::array![[0.5, 0.25]]);
    }

    #[test]
    fn recall_counts_a_token_as_often_as_the_answer_has_it() {
        assert_eq!(recall(&[1, 1, 2, 3], &[3, 1, 4]), 0.5);
        assert_eq!(recall(&[1, 1], &[1, 1, 1]), 1.0);
        assert_eq!(recall(&[1], &[]), 0.0);
    }
}
