//! Residues of effects, in named numbers and in sentences, for the command, the figure and the report.

use super::residue::{Carrier, DISTANCES, Residues, SessionEffects, Whole};
use crate::lens::band::{Estimate, LEAST};

/// Carriers that are told by name.
const NAMED: usize = 2;

/// The mean effects of the sessions in a role by name, and whether each is a part of what is left.
pub fn numbers(residues: &Residues, role: &str) -> Vec<(String, Estimate, bool)> {
    let direct = residues.mean(role, |one| one.direct);
    let wholes = Whole::EACH.into_iter().flat_map(|whole| {
        [
            (whole.label().to_owned(), residues.mean(role, |one| one.whole(whole)), false),
            (format!("left of it ({})", whole.label()), residues.mean(role, |one| one.residue(whole)), true),
        ]
    });
    let by_distance = DISTANCES.into_iter().map(|distances| {
        (format!("carried {}", distance_of(distances)), residues.carried(role, distances), true)
    });
    let between = ("carried behind the last session".to_owned(), residues.carried_between(role), true);
    let all = std::iter::once(("direct".to_owned(), direct, false)).chain(wholes).chain(by_distance);
    all.chain([between]).filter_map(|(name, estimate, is_left)| Some((name, estimate?, is_left))).collect()
}

fn distance_of((nearest, farthest): (usize, usize)) -> String {
    match (nearest, farthest) {
        (1, 1) => "by the next session".to_owned(),
        (n, f) if n == f => format!("{n} sessions later"),
        (n, usize::MAX) => format!("{n} or more sessions later"),
        (n, f) => format!("{n} to {f} sessions later"),
    }
}

/// The findings, a sentence or two a role and way of leaving it out.
pub fn in_words(residues: &Residues, segment: &str) -> Vec<String> {
    let of_role = |role: &str| {
        let wholes = Whole::EACH.into_iter().filter_map(|whole| left(residues, (role, segment), whole));
        wholes.chain(carriers(residues, (role, segment))).chain(windows(residues, role)).collect::<Vec<_>>()
    };
    residues.roles().into_iter().flat_map(of_role).collect()
}

fn left(residues: &Residues, (role, segment): (&str, &str), whole: Whole) -> Option<String> {
    let left = residues.left(role, whole)?;
    let nats = |of: &dyn Fn(&SessionEffects) -> Option<f64>| {
        residues.mean(role, of).and_then(|estimate| estimate.value).map_or("none".to_owned(), thousandths)
    };
    let unit = if residues.of_contrasts { "nats" } else { "nats a token" };
    let both = |one: &SessionEffects| one.residue(whole).is_some();
    Some(format!(
        "Deleting the {role} {segment} from the cache leaves {} of what it did: its direct effect is {}, {} it is {} {unit}.",
        percent(&left),
        nats(&|one| one.direct.filter(|_| both(one))),
        whole.label(),
        nats(&|one| one.whole(whole).filter(|_| both(one))),
    ))
}

/// A share with its interval, or the reason why it has none.
fn percent(share: &Estimate) -> String {
    let write = |x: f64| format!("{:.0}%", 100.0 * x);
    match (share.value, share.band) {
        (Some(value), Some((low, high))) => {
            format!("{} [{}, {}] (n = {})", write(value), write(low), write(high), share.n)
        }
        (Some(value), None) if share.n < LEAST => {
            format!("{} (n = {}; no interval below {LEAST})", write(value), share.n)
        }
        (Some(value), None) => format!(
            "{} (n = {}; any share is possible, since its effect altogether was not told from 0)",
            write(value),
            share.n
        ),
        (None, _) => "an undefined share".to_owned(),
    }
}

fn carriers(residues: &Residues, (role, segment): (&str, &str)) -> Option<String> {
    let largest = residues.largest(role, NAMED);
    let one = |(session, carrier): &(&SessionEffects, &Carrier)| {
        format!(
            "{} of case {} ({} of {})",
            carrier.name,
            session.case,
            thousandths(carrier.carried),
            session.span
        )
    };
    let named: Vec<String> = largest.iter().map(one).collect();
    (!named.is_empty()).then(|| {
        format!("What is left of the {role} {segment} is held most by {}, in nats.", named.join(" and by "))
    })
}

fn windows(residues: &Residues, role: &str) -> Option<String> {
    let share = |[start, end]: [usize; 2], whole| {
        let share = residues.by_window(role, [start, end], whole)?;
        Some(format!("layers {start}–{} {}", end - 1, percent(&share)))
    };
    let of = |whole: Whole| -> Vec<String> {
        residues.windows().into_iter().filter_map(|window| share(window, whole)).collect()
    };
    let (whole, shares) =
        Whole::EACH.into_iter().map(|whole| (whole, of(whole))).find(|(_, shares)| !shares.is_empty())?;
    Some(format!(
        "Of its effect {}, hiding it from the question on at a window of layers takes: {}.",
        whole.label(),
        shares.join("; ")
    ))
}

/// To a thousandth; a number that rounds to 0 has no sign.
fn thousandths(x: f64) -> String {
    format!("{:.3}", if x.abs() < 0.0005 { 0.0 } else { x })
}
