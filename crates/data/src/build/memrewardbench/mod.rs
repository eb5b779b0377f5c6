//! MemoryRewardBench: pairs of memory traces of which one is better by construction (section 3.3, appendix B).

mod contexts;
mod forms;
mod noise;
mod trace;
mod write;

use serde_json::Value;

use self::noise::tokens;
use self::trace::{lines, says};
use super::kind::{Found, Kind, Maker, With, write};
use super::{Row, Setting};
use crate::benchmarks::memrewardbench::difference::alone;

pub use write::{SHORTCUTS_FILE, shortcuts};

pub const KIND: Kind = Kind {
    name: "memrewardbench",
    presets: &[("full", include_str!("presets/full.toml")), ("noise", include_str!("presets/noise.toml"))],
    makers: &[
        ("chunks", Maker::Each(contexts::chunks)),
        ("parts", Maker::Each(contexts::parts)),
        ("join", Maker::Each(contexts::join)),
        ("without-keys", Maker::Each(noise::without_keys)),
        ("repeat", Maker::Each(noise::repeat)),
        ("foreign", Maker::All(noise::foreign)),
        ("corrected", Maker::Each(noise::corrected)),
        ("drop", Maker::Each(noise::drop)),
        ("against", Maker::Each(noise::against)),
        ("skip", Maker::Each(forms::skip)),
        ("dialogue", Maker::Each(forms::dialogue)),
        ("routes", Maker::Each(forms::routes)),
        ("pick", Maker::Each(forms::pick)),
        ("blocks", Maker::Each(forms::blocks)),
    ],
    checks: &[("differs", differs), ("lengths", lengths), ("outcomes", outcomes), ("no-keys", no_keys)],
    settings: "change chunk_tokens instead legs over_keys parts run spoiled systems towns unknown",
    write: |setting, rows, folder| write(setting, folder, write::data(setting, rows)),
};

/// The lines that each trace has alone are those that the maker took away and put in, and there are some.
fn differs(_: &Setting<'_>, _: &With, row: &Row) -> Found {
    let (chosen, rejected) = (row.text("chosen")?, row.text("rejected")?);
    if chosen == rejected {
        return Ok(Some("the traces are equal".to_owned()));
    }
    if row.get("gone").is_none() {
        return Ok(None);
    }
    let (of_chosen, of_rejected) = alone(chosen, rejected);
    for (text, ranges, name) in [(chosen, of_chosen, "gone"), (rejected, of_rejected, "added")] {
        let mut found: Vec<&str> =
            ranges.into_iter().flat_map(|range| lines(text.get(range).unwrap_or_default())).collect();
        let wanted: Vec<String> = row.read(name)?;
        let mut wanted: Vec<&str> = wanted.iter().flat_map(|text| lines(text)).collect();
        found.sort_unstable();
        wanted.sort_unstable();
        if found != wanted {
            return Ok(Some("the traces differ elsewhere too".to_owned()));
        }
    }
    Ok(None)
}

/// The lengths of the two differ by at most the share `most` of the longer one, else 5%.
fn lengths(setting: &Setting<'_>, with: &With, row: &Row) -> Found {
    let most = with.get("most").and_then(Value::as_f64).unwrap_or(0.05);
    let (a, b) = (tokens(setting, row.text("chosen")?)?, tokens(setting, row.text("rejected")?)?);
    let is_far = a.abs_diff(b) as f64 > most * a.max(b) as f64;
    Ok(is_far.then(|| "the lengths differ too much".to_owned()))
}

/// The answers at the ends are right or wrong as `chosen` and `rejected` say; an end that neither names may be either.
fn outcomes(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let finals: [String; 2] = match row.given("finals")? {
        Some(finals) => finals,
        None => [row.text("final")?.to_owned(), String::new()],
    };
    let gold = row.text("answer")?;
    for (name, last) in ["chosen", "rejected"].into_iter().zip(&finals) {
        let is_right = says(last, gold);
        if with.get(name).and_then(Value::as_bool).is_some_and(|wanted| wanted != is_right) {
            return Ok(Some(format!("the {name} answer is {}", if is_right { "right" } else { "wrong" })));
        }
    }
    Ok(None)
}

/// No key stands in the rejected trace, and each in the chosen one.
fn no_keys(_: &Setting<'_>, _: &With, row: &Row) -> Found {
    let (chosen, rejected) = (row.text("chosen")?, row.text("rejected")?);
    let mut keys = row.read::<Vec<String>>("keys")?.into_iter();
    let is_wrong = keys.any(|key| rejected.contains(&key) || !chosen.contains(&key));
    Ok(is_wrong.then(|| "a key is in the wrong trace".to_owned()))
}
