//! Rule-based readings: the named and the likeliest value, with its kind (current, stale, absent).

use super::terms::{ABSENT, CURRENT, EXPECTS, NO_VALUE, OTHER_ANSWER, PREFIX, STALE};
use crate::benchmarks::{Given, NotRead, Reading, Said, Told};
use crate::case::Notes;
use crate::ground::words::units;

pub(super) const READINGS: &[Reading] = &[
    Reading {
        name: "choice",
        about: "the likeliest of the values right after the prompt, without sampling",
        of_scores: true,
        // Skips blind rows, where no value is right.
        asks: |notes| expected(notes) == CURRENT,
        read: choice,
    },
    // The last reading is shown by default; it also reads questions that expect no value.
    Reading {
        name: "exact",
        about: "the value with which the answer goes on behind its given beginning",
        of_scores: false,
        asks: |_| true,
        read: exact,
    },
];

fn values(notes: &Notes) -> Vec<(&'static str, &str)> {
    let list = |kind: &'static str| {
        let values = notes.get(kind).and_then(serde_json::Value::as_array).into_iter().flatten();
        values.filter_map(move |value| Some((kind, value.as_str()?)))
    };
    let current = notes.get(CURRENT).and_then(|value| Some((CURRENT, value.as_str()?)));
    current.into_iter().chain(list(STALE)).chain(list(ABSENT)).collect()
}

fn expected(notes: &Notes) -> &str {
    notes.get(EXPECTS).and_then(serde_json::Value::as_str).unwrap_or(CURRENT)
}

fn exact(given: &Given<'_>) -> Result<Told, NotRead> {
    let said = units(given.answer()?);
    // The model may repeat the given prefix.
    let prefix = units(given.notes.get(PREFIX).and_then(serde_json::Value::as_str).unwrap_or_default());
    let said = said.strip_prefix(prefix.as_slice()).unwrap_or(&said);
    let values: Vec<(&str, Vec<String>)> =
        values(given.notes).into_iter().map(|(kind, value)| (kind, units(value))).collect();
    // Prefer the longest matching value.
    let begins = values.iter().filter(|(_, value)| said.starts_with(value));
    let named = |value: &[String]| said.windows(value.len().max(1)).any(|window| window == value);
    let kind = match begins.max_by_key(|(_, value)| value.len()) {
        Some((kind, _)) => kind,
        None if values.iter().any(|(_, value)| named(value)) => OTHER_ANSWER,
        None => NO_VALUE,
    };
    Ok(Told {
        said: Said::Choice(kind.to_owned()),
        correct: Some(kind == expected(given.notes)),
        probability: None,
    })
}

fn choice(given: &Given<'_>) -> Result<Told, NotRead> {
    let scores = given.scores.ok_or_else(|| {
        NotRead("there are no log-probabilities of the values; only models on this machine and palimpsest servers give them".to_owned())
    })?;
    let scored =
        values(given.notes).into_iter().filter_map(|(kind, value)| Some((kind, *scores.get(value)?)));
    let scored: Vec<(&str, f64)> = scored.collect();
    // Ties go to the first, the current value.
    let likeliest = scored.iter().rev().max_by(|a, b| a.1.total_cmp(&b.1));
    let &(kind, best) = likeliest.ok_or_else(|| NotRead("no value has a log-probability".to_owned()))?;
    let all: f64 = scored.iter().map(|(_, log_p)| (log_p - best).exp()).sum();
    Ok(Told {
        said: Said::Choice(kind.to_owned()),
        correct: Some(kind == CURRENT),
        probability: Some(1.0 / all),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn given<'a>(notes: &'a Notes, answer: &'a str) -> Given<'a> {
        Given { case: "", setting: "", seed: 0, answer: Some(answer), thought: None, scores: None, notes }
    }

    #[test]
    fn an_answer_is_the_value_that_it_begins_with() {
        let notes = |expects: &str| {
            let notes = json!({"current": " New York", "stale": [" York", " Rome"], "absent": [" Oslo"], "expects": expects, "prefix": "She lives in"});
            notes.as_object().unwrap().clone()
        };
        for (answer, kind) in [
            ("New York, as you said.", "current"),
            ("**new** york", "current"),
            ("York.", "stale"),
            ("She lives in Rome now.", "stale"),
            ("She lives in", "none"),
            ("Rome", "stale"),
            ("Oslo!", "absent"),
            ("not Rome any more", "other"),
            ("Romeo", "none"),
            ("", "none"),
        ] {
            for expects in ["current", "none"] {
                let told = exact(&given(&notes(expects), answer)).unwrap();
                assert_eq!(told.said, Said::Choice(kind.to_owned()), "{answer}");
                assert_eq!(told.correct, Some(kind == expects), "{answer}");
            }
        }
    }
}
