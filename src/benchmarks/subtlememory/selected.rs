//! Which session of a nuanced set governs a question. No field of the data says it.
//!
//! It is taken to be the one target session in whose text a right answer stands word for word, letter case and punctuation aside,
//! where exactly one does; else nobody knows, and all targets stay alike.

use crate::data::Segment;
use crate::ground::words::phrase;

/// The place of the one among `targets` whose turns hold one of the right answers.
pub(super) fn selected(history: &[Segment], targets: &[usize], correct: &[String]) -> Option<usize> {
    let answers: Vec<String> = correct.iter().map(|answer| phrase(answer)).filter(|a| a.len() > 2).collect();
    let holds = |at: &&usize| {
        let segment = history.iter().find(|segment| segment.index == **at);
        segment.is_some_and(|segment| {
            let texts: Vec<String> = segment.turns.iter().map(|turn| phrase(&turn.content)).collect();
            answers.iter().any(|answer| texts.iter().any(|text| text.contains(answer)))
        })
    };
    let mut holding = targets.iter().filter(holds);
    let first = holding.next()?;
    holding.next().is_none().then_some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Turn;

    #[test]
    fn the_session_that_alone_holds_a_right_answer_is_selected() {
        let segment = |(index, text): (usize, &str)| Segment {
            kind: "session".to_owned(),
            index,
            time: None,
            turns: vec![Turn::new("user", "How many?"), Turn::new("assistant", text)],
        };
        let history: Vec<Segment> =
            ["As of June there were 431.", "As of March: 412 models.", "In all 1431 people came."]
                .into_iter()
                .enumerate()
                .map(segment)
                .collect();
        let of = |targets: &[usize], answers: &[&str]| {
            let answers: Vec<String> = answers.iter().map(|a| (*a).to_owned()).collect();
            selected(&history, targets, &answers)
        };
        assert_eq!(of(&[0, 1, 2], &["431", "four hundred and thirty-one"]), Some(0));
        assert_eq!(of(&[0, 1], &["412 Models"]), Some(1));
        assert_eq!(of(&[0, 1], &["as of"]), None, "two hold it");
        assert_eq!(of(&[0, 1], &["440"]), None, "none holds it");
        assert_eq!(of(&[1, 2], &["431"]), None, "a part of a word is no word");
        assert_eq!(of(&[0], &["...", ""]), None, "an answer without words is no value");
    }
}
