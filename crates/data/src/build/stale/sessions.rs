//! Evidence sessions: who speaks in which round, and where the fact is said.

use serde_json::{Map, Value, json};

use super::terms::{FACTS, SIDES};
use crate::benchmarks::stale::TOLD;
use crate::benchmarks::stale::sample::scenarios;
use crate::build::checks::needed;
use crate::build::{Found, Row, RowError, Rows, Setting, With};
use crate::case::Turn;
use crate::case::check::words::{content_words, part_said};
use crate::construct::session::{ASSISTANT, USER};

/// Most rounds of a session, and those that the fact may be in.
const ROUNDS: usize = 6;
const OF_FACT: usize = 4;

/// Adds the fields of the built-in scenario whose `uid` is the row's id.
pub fn scenario(_: &Setting<'_>, row: &Row) -> Rows {
    let known = scenarios().iter().find(|scenario| scenario.uid == row.id);
    let Some(Ok(fields)) = known.map(serde_json::to_value) else {
        let ids: Vec<&str> = scenarios().iter().map(|scenario| scenario.uid.as_str()).collect();
        let fault = format!("row {} is no built-in scenario; name one of {}", row.id, ids.join(", "));
        return Err(RowError::Fault(fault));
    };
    Ok(vec![row.copy().with(fields)])
}

/// Adds `old_plan` and `new_plan`: the turns of the session to be written, in order, each `{role, round, fact}`. The fact is said in round 0
/// to 3 and empty elsewhere. A session has 4 to 6 rounds, as none can be cut before the fact then.
pub fn rounds(setting: &Setting<'_>, row: &Row) -> Rows {
    let mut draws = setting.draws(&row.id, 0);
    let mut made = row.copy();
    for (side, fact) in SIDES.iter().zip(FACTS) {
        let (told, rounds) = (draws.index(OF_FACT), OF_FACT + draws.index(ROUNDS - OF_FACT + 1));
        let fact = row.text(fact)?;
        let of_round = |round: usize| {
            let said = [(USER, if round == told { fact } else { "" }), (ASSISTANT, "")];
            said.map(|(role, fact)| json!({"role": role, "round": round, "fact": fact}))
        };
        made.fields.insert(side.replace("session", "plan"), (0..rounds).flat_map(of_round).collect());
    }
    Ok(vec![made])
}

/// Adds `old_session` and `new_session` of the texts in `old_said` and `new_said`, one a turn of the plan.
pub fn dialogue(_: &Setting<'_>, row: &Row) -> Rows {
    let mut made = row.copy();
    for side in SIDES {
        let [plan, said] = ["plan", "said"].map(|what| side.replace("session", what));
        let (plan, said): (Vec<Map<String, Value>>, Vec<String>) = (row.read(&plan)?, row.read(&said)?);
        if plan.len() != said.len() {
            return Err(RowError::Rejected(format!("{side} lacks turns")));
        }
        let turns = plan.iter().zip(&said);
        let turns = turns.map(|(turn, said)| json!({"role": turn.get("role"), "content": said.trim()}));
        made.fields.insert(side.to_owned(), turns.collect());
    }
    Ok(vec![made])
}

/// A check: some turn of the user in the session at `session` has 60% of the content words of the text at `fact`, as `data check` wants it.
pub fn told(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let (session, fact): (String, String) = (needed(with, "session")?, needed(with, "fact")?);
    let turns: Vec<Turn> = row.read(&session)?;
    let words = content_words(row.text(&fact)?);
    let by_user = turns.iter().filter(|turn| turn.role == USER);
    let most = by_user.map(|turn| part_said(&words, &content_words(&turn.content))).fold(0.0, f64::max);
    Ok((most < TOLD)
        .then(|| format!("no turn of the user has more than {:.0}% of the words of `{fact}`", 100.0 * most)))
}
