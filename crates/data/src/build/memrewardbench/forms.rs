//! Pairs of dialogue memories, routes and long texts.

use serde_json::json;

use super::trace::{Pair, answer, asked, rejected, says};
use crate::build::{Row, RowError, Rows, Setting};

const TRANSPORTS: [&str; 4] = ["bus", "train", "plane", "ferry"];

/// Skips the updates of `run` turns side by side, of a length between the two numbers of the setting `run`; with `over_keys` a turn with a
/// key is among them. `kept` are the notes that are left.
pub fn skip(setting: &Setting<'_>, row: &Row) -> Rows {
    let (turns, notes): (Vec<String>, Vec<String>) = (row.read("turns")?, row.read("notes")?);
    let [least, most]: [usize; 2] = setting.needed("run")?;
    if turns.len() != notes.len() {
        let found = format!("{} turns and {} notes; give one a turn", turns.len(), notes.len());
        return Err(RowError::Fault(format!("row {}: {found}", row.id)));
    }
    let mut draws = setting.draws(&row.id, 0);
    let run = least + draws.index((most + 1).saturating_sub(least));
    let over_keys = setting.given("over_keys")?.unwrap_or(false);
    let keys: Vec<String> = if over_keys { row.read("keys")? } else { Vec::new() };
    let has_key = |turn: &String| keys.iter().any(|key| turn.contains(key.as_str()));
    // Whole runs where something was written.
    let starts: Vec<usize> = (0..(turns.len() + 1).saturating_sub(run))
        .filter(|at| notes[*at..at + run].iter().any(|note| !note.trim().is_empty()))
        .filter(|at| !over_keys || turns[*at..at + run].iter().any(has_key))
        .collect();
    if starts.is_empty() {
        return rejected("no run of turns can be skipped");
    }
    let from = starts[draws.index(starts.len())];
    let mut kept = notes;
    kept[from..from + run].iter_mut().for_each(String::clear);
    // Both memory systems write notes of a dialogue: the copy's number says which.
    let systems: Vec<String> = setting.given("systems")?.unwrap_or_default();
    let system = row.number("copy").ok().and_then(|copy| systems.get(copy));
    let made = row.copy().with(json!({"kept": kept, "skipped": [from, from + run]}));
    Ok(vec![made.with(system.map(|system| json!({"system": system})).unwrap_or_default())])
}

/// The memory of all turns against the one with skipped turns: Mem if the answer from the rest is right, else Out. That answer is the field
/// `kept_final`; without it, the whole memory's answer if a note that is left says the gold one, else the setting `unknown`.
pub fn dialogue(setting: &Setting<'_>, row: &Row) -> Rows {
    let (turns, notes, kept): (Vec<String>, Vec<String>, Vec<String>) =
        (row.read("turns")?, row.read("notes")?, row.read("kept")?);
    let (gold, last) = (row.text("answer")?, row.text("final")?);
    let after = match row.text("kept_final") {
        Ok(text) => text.to_owned(),
        Err(_) if kept.iter().any(|note| says(note, gold)) => last.to_owned(),
        Err(_) => setting.needed("unknown")?,
    };
    let block = |nth: usize, notes: &[String]| {
        Some(format!("[turn {}]\n{}", nth + 1, notes[nth])).filter(|_| !notes[nth].trim().is_empty())
    };
    let shown = |notes: &[String], last: &str| {
        let blocks = (0..notes.len()).filter_map(|nth| block(nth, notes)).chain([answer(last)]);
        blocks.collect::<Vec<_>>().join("\n\n")
    };
    let lost = (0..notes.len()).filter(|nth| notes[*nth] != kept[*nth]);
    let mut apart = [lost.filter_map(|nth| block(nth, &notes)).collect(), Vec::new()];
    if after != last {
        apart[0].push(answer(last));
        apart[1].push(answer(&after));
    }
    let kind = if says(&after, gold) { "Mem" } else { "Out" };
    let pair = Pair {
        subtask: format!("{}-{kind}", row.text("system")?),
        question: asked("Conversation", &turns.join("\n"), row.text("question")?),
        chosen: shown(&notes, last),
        rejected: shown(&kept, &after),
        finals: [last.to_owned(), after],
        apart: Some(apart),
        how: "skip",
    };
    Ok(vec![pair.row(row, json!({"skipped_turns": row.get("skipped")}))])
}

/// Draws a world of towns with one way out of each, and a route of `legs` legs through it; the worse one leaves the route for as many towns
/// and comes back, by two connections that do not exist (appendix B.3, figure 9). Names are of the setting `towns`.
pub fn routes(setting: &Setting<'_>, row: &Row) -> Rows {
    let (mut towns, legs): (Vec<String>, usize) = (setting.needed("towns")?, setting.needed("legs")?);
    if legs < 3 || towns.len() < 2 * legs {
        let what = format!("{} towns for {legs} legs; give 3 legs or more, and 2 towns a leg", towns.len());
        return Err(RowError::Fault(what));
    }
    let mut draws = setting.draws(&row.id, 0);
    draws.shuffle(&mut towns);
    let by: Vec<&str> = (0..legs).map(|_| TRANSPORTS[draws.index(TRANSPORTS.len())]).collect();
    let (path, aside) = towns[..2 * legs].split_at(legs + 1);
    // The town beside path[k] is aside[k - 1]; it is left by the same means, so that the worse route differs by names alone.
    let mut ways: Vec<(&String, &String, &str)> =
        path.windows(2).zip(&by).map(|(pair, by)| (&pair[0], &pair[1], *by)).collect();
    ways.extend(aside.windows(2).zip(&by[1..]).map(|(pair, by)| (&pair[0], &pair[1], *by)));
    ways.push((&aside[legs - 2], &path[draws.index(legs)], by[legs - 1]));
    draws.shuffle(&mut ways);
    let from = 1 + draws.index(legs - 1);
    let to = from + draws.index(legs - from);
    let worse: Vec<&String> =
        (0..=legs).map(|k| if (from..=to).contains(&k) { &aside[k - 1] } else { &path[k] }).collect();
    let leg = |a: &str, b: &str, by: &str| format!("From {a}, take the {by} to {b}.");
    let route = |towns: &[&String]| -> Vec<String> {
        towns.windows(2).zip(&by).map(|(pair, by)| leg(pair[0], pair[1], by)).collect()
    };
    let (right, wrong) = (route(&path.iter().collect::<Vec<_>>()), route(&worse));
    let known =
        ways.iter().map(|(a, b, by)| format!("{a} is a quiet town. You can travel from {a} to {b} by {by}."));
    let (known, start, end) = (known.collect::<Vec<_>>().join("\n"), &path[0], &path[legs]);
    let question = format!(
        "In an invented country there is one connection out of each town, and it goes in one direction.\n\n[PROBLEM]\n{known}\n\nGive the route from {start} to {end}, one leg a line."
    );
    let shown = |legs: &[String]| format!("<Route>\n{}\n</Route>", legs.join("\n"));
    let pair = Pair {
        subtask: "Sequential".to_owned(),
        question,
        chosen: shown(&right),
        rejected: shown(&wrong),
        finals: [right[legs - 1].clone(), wrong[legs - 1].clone()],
        apart: Some([right, wrong].map(|route| route[from - 1..=to].to_vec())),
        how: "middle",
    };
    let made = pair.row(row, json!({"wrong_legs": [from, to + 1], "legs": legs}));
    Ok(vec![made.with(json!({"answer": end}))])
}

/// Draws constraints that the worse text is not to meet, the share `spoiled` of them: their numbers in `picked`, their texts in `to_alter`.
/// With `change = "dropped"` nothing takes their place: `altered` is a list of empty texts.
pub fn pick(setting: &Setting<'_>, row: &Row) -> Rows {
    let constraints: Vec<String> = row.read("constraints")?;
    let (share, change): (f64, String) = (setting.needed("spoiled")?, setting.needed("change")?);
    let mut picked: Vec<usize> = (0..constraints.len()).collect();
    setting.draws(&row.id, 0).shuffle(&mut picked);
    picked.truncate(((share * constraints.len() as f64).round() as usize).max(1));
    picked.sort_unstable();
    let texts: Vec<&String> = picked.iter().map(|nth| &constraints[*nth]).collect();
    let made = row.part(&change, row.fields.clone());
    let made = made.with(json!({"to_alter": texts, "picked": picked, "change": change}));
    let dropped = (change == "dropped").then(|| json!({"altered": vec![""; texts.len()]}));
    Ok(vec![made.with(dropped.unwrap_or_default())])
}

/// The text whose blocks meet every constraint against the one whose picked blocks, `spoiled_blocks`, were written for others.
pub fn blocks(_: &Setting<'_>, row: &Row) -> Rows {
    let (right, picked): (Vec<String>, Vec<usize>) = (row.read("blocks")?, row.read("picked")?);
    let (spoiled, mut wrong): (Vec<String>, Vec<String>) = (row.read("spoiled_blocks")?, right.clone());
    for (nth, block) in picked.iter().zip(&spoiled) {
        if let Some(place) = wrong.get_mut(*nth) {
            place.clone_from(block);
        }
    }
    let gone = picked.iter().filter_map(|nth| right.get(*nth).cloned()).collect();
    let shown = |blocks: &[String]| {
        let block = |(nth, text): (usize, &String)| format!("[Section {}]\n{text}", nth + 1);
        blocks.iter().enumerate().map(block).collect::<Vec<_>>().join("\n\n")
    };
    let pair = Pair {
        subtask: row.text("scheme")?.to_owned(),
        question: row.text("question")?.to_owned(),
        chosen: shown(&right),
        rejected: shown(&wrong),
        apart: Some([gone, spoiled]),
        how: "constraints",
        ..Pair::default()
    };
    Ok(vec![pair.row(row, json!({"change": row.get("change"), "sections": picked}))])
}
