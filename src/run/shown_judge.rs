//! Which of several judgings a command shows where it shows one: the others are named, so that none is replaced unsaid.

use std::path::Path;

use super::judge_name::{JudgeChoice, JudgeName};
use super::store::RunFolder;
use crate::progress::note;

/// Says whose verdicts on a run are shown and whose are not, where there are several and `named` means more than one of them. Silent
/// about a folder that cannot be read: the command itself says why.
pub fn say_which(dir: &Path, shown: Option<&str>, named: Option<&str>) {
    let (Ok(folder), Some(shown)) = (RunFolder::read(dir), shown) else { return };
    if let Some(text) = which(folder.judges(), shown, named) {
        note(format_args!("note: {}: {text}", dir.display()));
    }
}

fn which(judges: &[JudgeName], shown: &str, named: Option<&str>) -> Option<String> {
    let choice = JudgeChoice::of(named);
    let meant: Vec<&str> =
        judges.iter().map(|name| name.label.as_str()).filter(|l| choice.takes(l)).collect();
    let others: Vec<&str> =
        meant.into_iter().filter(|label| *label != shown && named != Some(shown)).collect();
    (!others.is_empty()).then(|| {
        format!(
            "verdicts are those of {shown}, the last that could be read; there are others, which --judge shows: {} (`palimpsest table` has a row each)",
            others.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_judgings_are_named_unless_one_was_meant() {
        let judge = |label: &str| JudgeName {
            judge: "j".to_owned(),
            digest: None,
            rubric: None,
            label: label.to_owned(),
        };
        let two = [judge("j (strict, reasons first)"), judge("j (strict, reasons last)")];
        let shown = "j (strict, reasons last)";
        assert!(which(&two, shown, None).is_some_and(|text| text.contains("j (strict, reasons first)")));
        assert!(which(&two, shown, Some("j")).is_some(), "the name alone means both");
        assert_eq!(which(&two, shown, Some(shown)), None);
        assert_eq!(which(&two[1..], shown, None), None);
    }
}
