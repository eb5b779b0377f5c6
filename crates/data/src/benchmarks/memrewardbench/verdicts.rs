//! Rule-based verdicts, A or B. `strict` (the authors' script) reads the first five characters; `lenient` takes the first verdict after any
//! thought; `scored` compares the probabilities of both verdicts after the prompt. Unparsed answers count as wrong.

use super::orders::{LETTERS, parse};
use super::row::OPTIONS;
use crate::benchmarks::{Given, NotRead, Reading, Said, Told};
use crate::case::finding::quote;

const THOUGHT_ENDS: &str = "</think>";
const THOUGHT_BEGINS: &str = "<think>";
const MARKUP: [char; 5] = ['*', '_', '`', '\\', '~'];
const VERDICT_CHARS: usize = 5;

pub(super) const READINGS: &[Reading] = &[
    Reading {
        name: "lenient",
        about: "the first verdict behind a thought, whatever markup is around it",
        of_scores: false,
        asks: |_| true,
        read: lenient,
    },
    Reading {
        name: "strict",
        about: "the first five characters of the reply, as the authors' script reads them",
        of_scores: false,
        asks: |_| true,
        read: strict,
    },
    Reading {
        name: "scored",
        about: "the likelier of both verdicts after the prompt, without sampling",
        of_scores: true,
        asks: |_| true,
        read: scored,
    },
];

/// Also returns the byte offset of its letter.
pub(super) fn first_verdict(answer: &str) -> Option<(&'static str, usize)> {
    let start = match answer.rfind(THOUGHT_ENDS) {
        Some(at) => at + THOUGHT_ENDS.len(),
        None if answer.trim_start().starts_with(THOUGHT_BEGINS) => return None,
        None => 0,
    };
    let rest = answer.get(start..).unwrap_or_default();
    let plain = rest.char_indices().filter(|(_, c)| !c.is_whitespace() && !MARKUP.contains(c));
    let plain: Vec<(usize, char)> = plain.map(|(at, c)| (start + at, c.to_ascii_uppercase())).collect();
    plain.windows(VERDICT_CHARS).find_map(|window| match window {
        [(_, '['), (_, '['), (at, letter), (_, ']'), (_, ']')] => {
            let letter = LETTERS.into_iter().find(|known| known.chars().eq([*letter]))?;
            Some((letter, *at))
        }
        _ => None,
    })
}

fn lenient(given: &Given<'_>) -> Result<Told, NotRead> {
    let answer = given.answer()?;
    match first_verdict(answer) {
        Some((letter, _)) => told(given, letter, None),
        None => Err(NotRead(format!("unparsed: there is neither [[A]] nor [[B]] in {}", quote(answer)))),
    }
}

fn strict(given: &Given<'_>) -> Result<Told, NotRead> {
    let answer = given.answer()?;
    if given.thought.is_some_and(|thought| !thought.is_empty()) {
        return Err(NotRead("unparsed: the reply begins with a thought".to_owned()));
    }
    let begins = answer.char_indices().nth(VERDICT_CHARS).map_or(answer, |(end, _)| &answer[..end]);
    let found = OPTIONS.into_iter().zip(LETTERS).find(|(option, _)| *option == begins);
    match found {
        Some((_, letter)) => told(given, letter, None),
        None => Err(NotRead(format!("unparsed: the reply begins with {}", quote(answer)))),
    }
}

fn scored(given: &Given<'_>) -> Result<Told, NotRead> {
    let score = |option: &str| given.scores.and_then(|scores| scores.get(option).copied());
    let [Some(a), Some(b)] = OPTIONS.map(score) else {
        let why = "there are no scores of [[A]] and [[B]]; only models on this machine give them";
        return Err(NotRead(why.to_owned()));
    };
    // Ties go to the first.
    let (letter, best, other) = if a >= b { (LETTERS[0], a, b) } else { (LETTERS[1], b, a) };
    told(given, letter, Some(1.0 / (1.0 + (other - best).exp())))
}

fn told(given: &Given<'_>, letter: &'static str, probability: Option<f64>) -> Result<Told, NotRead> {
    let Some((order, _)) = parse(given.setting) else {
        return Err(NotRead(format!("`{}` does not say which trajectory stood first", given.setting)));
    };
    let expected = LETTERS[usize::from(!order.chosen_first(given.case, given.seed))];
    let correct = Some(letter == expected);
    Ok(Told { said: Said::Choice(letter.to_owned()), correct, probability })
}
