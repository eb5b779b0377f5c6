//! Labels in sentences, for the report and below tables.

use super::labels::{Certificates, Labels};
use crate::run::why_rows::Label;
use crate::statistics::{LEVEL, wilson};

/// The paragraphs on a run.
pub fn in_words(labels: &Labels) -> Vec<String> {
    let wrong: Vec<_> = labels.answers.iter().filter(|answer| answer.row.label != Label::Right).collect();
    let counted = Label::ALL.into_iter().filter(|label| *label != Label::Right).filter_map(|label| {
        let count = wrong.iter().filter(|answer| answer.row.label == label).count();
        (count > 0).then(|| format!("{} {count}", label.key()))
    });
    let mut words = vec![format!(
        "Of {} answers {} are right by the verdicts of {}. The others: {}.",
        labels.answers.len(),
        labels.answers.len() - wrong.len(),
        labels.judges.join(", "),
        join(counted.collect())
    )];
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for answer in wrong.iter().filter(|answer| answer.row.label == Label::Undecided) {
        match reasons.iter_mut().find(|(why, _)| *why == answer.row.why) {
            Some((_, count)) => *count += 1,
            None => reasons.push((&answer.row.why, 1)),
        }
    }
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    if !reasons.is_empty() {
        let reasons = reasons.iter().map(|(why, count)| format!("{why} ({count})"));
        words.push(format!("Undecided: {}.", join(reasons.collect())));
    }
    words.extend(of_certificates(labels).into_iter().map(|text| format!("{}.", capital(&text))));
    words
}

/// Sentences without a full stop on the certificates of a run, where any was searched for.
pub(super) fn of_certificates(labels: &Labels) -> Vec<String> {
    let [with, without] = labels.certificates();
    let mut said = Vec::new();
    if with.searched > 0 {
        let Certificates { searched, found, single, candidates, .. } = with;
        said.push(format!(
            "certificates: blocking a set of sessions turns {}, one session alone {single}; searched among {:.1} sessions in {:.1} readings \
             in the mean ({:.1} where one was found)",
            share(found, searched),
            candidates as f64 / searched as f64,
            with.readings as f64 / searched as f64,
            with.readings_of_found as f64 / found.max(1) as f64,
        ));
        if with.control_sets > 0 {
            said.push(format!(
                "random sets of a certificate's size turn the answer in {}",
                share(with.control_flips, with.control_sets)
            ));
        }
        if with.spent > 0 {
            said.push(format!("{} searches spent their readings (--readings)", with.spent));
        }
    }
    if without.searched > 0 {
        said.push(format!(
            "false certificates: of histories without evidence, {} have one, {} of one session",
            share(without.found, without.searched),
            without.single
        ));
    }
    said
}

fn join(parts: Vec<String>) -> String {
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().collect::<String>() + chars.as_str()).unwrap_or_default()
}

/// A share of a count with its 95% interval, in percent.
fn share(count: usize, of: usize) -> String {
    let percent = |x: f64| format!("{:.0}", 100.0 * x);
    match wilson(count, of, LEVEL) {
        Some(interval) => format!(
            "{count} of {of} ({}%, {} to {})",
            percent(count as f64 / of as f64),
            percent(interval.low),
            percent(interval.high)
        ),
        None => format!("{count} of {of}"),
    }
}
