//! Kind of reference of a trap question (T2). Data set 3 has orders under T2; graded as traps, right answers would count as wrong.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Abstention,
    Order,
    Fact,
}

const ARROWS: [&str; 3] = ["->", "→", "=>"];
/// Lower case, straight apostrophes.
const ABSTAINING: [&str; 24] = [
    "not mention",
    "unmentioned",
    "not say",
    "not tell",
    "not told",
    "not state",
    "not specif",
    "not provide",
    "not given",
    "not contain",
    "not in the text",
    "not recorded",
    "unable to answer",
    "cannot answer",
    "cannot be answered",
    "cannot be determined",
    "can't be answered",
    "can't be determined",
    "insufficient",
    "not enough information",
    "no information",
    "don't know",
    "not known",
    "unknown",
];

/// Whole references that abstain.
const NOTHING: [&str; 3] = ["none", "n/a", "unanswerable"];

impl Expected {
    pub(super) fn of(reference: &str) -> Self {
        if ARROWS.iter().any(|arrow| is_order(reference, arrow)) {
            return Expected::Order;
        }
        let words = reference.to_lowercase().replace('’', "'");
        let nothing = NOTHING.contains(&words.trim().trim_end_matches('.'));
        match nothing || ABSTAINING.iter().any(|abstaining| words.contains(abstaining)) {
            true => Expected::Abstention,
            false => Expected::Fact,
        }
    }

    /// Facet that selects a non-trap rubric; `None` if the reference abstains.
    pub(super) fn facet(self) -> Option<&'static str> {
        match self {
            Expected::Abstention => None,
            Expected::Order => Some("order"),
            Expected::Fact => Some("fact"),
        }
    }
}

fn is_order(reference: &str, arrow: &str) -> bool {
    let mut events = reference.split(arrow);
    let has_words = |event: &str| event.chars().any(char::is_alphanumeric);
    reference.contains(arrow) && events.all(has_words)
}

#[cfg(test)]
mod tests {
    use super::Expected;

    /// Data set 1 has the first, data set 2 the next two; data set 3 adds orders, bare or with reasons.
    #[test]
    fn references_of_the_released_traps_abstain_or_are_orders() {
        let all = [
            (
                "The text does not mention / the information is insufficient / I don't know.",
                Expected::Abstention,
            ),
            ("unable to answer", Expected::Abstention),
            ("not mentioned in the text", Expected::Abstention),
            ("I don’t know", Expected::Abstention),
            ("None.", Expected::Abstention),
            ("A -> B -> C", Expected::Order),
            ("B→A→C.", Expected::Order),
            ("B -> A. (Event B is not mentioned again.)", Expected::Order),
            ("a thin arrow ->", Expected::Fact),
            ("the boathouse", Expected::Fact),
        ];
        for (reference, expected) in all {
            assert_eq!(Expected::of(reference), expected, "{reference}");
        }
        assert_eq!(Expected::Abstention.facet(), None);
    }
}
