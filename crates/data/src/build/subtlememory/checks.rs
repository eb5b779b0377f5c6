//! Checks of sessions.

use std::collections::BTreeSet;

use crate::build::checks::needed;
use crate::build::{Found, Row, Setting, With};
use crate::case::Turn;
use crate::case::check::words::{content_words, part_said};
use crate::ground::words::phrase;

/// `fact` and `turns` are paths, `least` and `opening` shares of the fact's content words: a session says at least `least` of them (as
/// `data check` requires), its first turn less than `opening`, and no turn has the fact word for word.
pub(super) fn told(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let [fact, turns] = ["fact", "turns"].map(|name| needed::<String>(with, name));
    let (fact, turns) = (row.text(&fact?)?, row.read::<Vec<Turn>>(&turns?));
    let Ok(turns) = turns else { return Ok(Some("the session has no turns".to_owned())) };
    let words = content_words(fact);
    let said = |turns: &[Turn]| {
        let said: BTreeSet<String> = turns.iter().flat_map(|turn| content_words(&turn.content)).collect();
        part_said(&words, &said)
    };
    let (all, opening) = (said(&turns), turns.first().map_or(0.0, |turn| said(std::slice::from_ref(turn))));
    let percent = |share: f64| format!("{:.0}% of the fact's words", 100.0 * share);
    Ok(if all < needed::<f64>(with, "least")? {
        Some(format!("the session says {}", percent(all)))
    } else if opening >= needed::<f64>(with, "opening")? {
        Some(format!("the first turn says {}", percent(opening)))
    } else {
        let whole = phrase(fact);
        let at = turns.iter().position(|turn| phrase(&turn.content).contains(&whole));
        at.map(|at| format!("turn {at} has the fact word for word"))
    })
}
