//! Colours of roles and sentences of captions that the figures of causes share.

use plotters::style::RGBColor;

use super::meaning::Meaning;
use crate::ground::numbers::percent;
use crate::lens::causes::Causes;

pub(super) const AXIS: &str = "effect: fall of the answer's log-probability per token (nats)";

/// Of sessions in a role, by its place among the roles, or without one.
pub(super) fn meaning_of(causes: &Causes, role: Option<&str>) -> Meaning {
    let Some(role) = role else { return Meaning::Others };
    let others = causes.roles.iter().filter(|known| Meaning::of_role(known).is_none());
    let place = others.into_iter().position(|known| known == role).unwrap_or(0);
    Meaning::of_role(role).unwrap_or(Meaning::Group(place))
}

pub(super) fn colour(causes: &Causes, role: Option<&str>) -> RGBColor {
    meaning_of(causes, role).colour()
}

/// The effect of a session, for captions.
pub(super) fn effect_in_words(causes: &Causes) -> String {
    format!(
        "The effect of a session is how far the answer's mean log-probability per token (natural logarithm, in nats) falls when everything \
         from the question on is kept from seeing it; above 0, the answer needs it. Only direct paths are blocked: what other sessions took over from it still \
         arrives.{}{}",
        open_in_words(causes.layers_open(), "the model's"),
        match has_thoughts(causes) {
            true => " The answer is the text behind the thought.",
            false => "",
        }
    )
}

/// The share of layers that still saw what was blocked; empty where none did.
pub(super) fn open_in_words(open: f64, whose: &str) -> String {
    match open > 0.0 {
        true => format!(
            " Only softmax layers were blocked: {}% of {whose} layers, the linear-attention ones, still saw the session.",
            percent(open)
        ),
        false => String::new(),
    }
}

/// True if some answer has a thought before it.
pub(super) fn has_thoughts(causes: &Causes) -> bool {
    let mut sessions = causes.answers.iter().flat_map(|answer| &answer.sessions);
    sessions.any(|session| session.effect.thought.is_some())
}

/// The definition of controls, for captions.
pub(super) fn controls_in_words(causes: &Causes) -> String {
    let Some((least, most)) = causes.pools() else { return " No controls were measured.".to_owned() };
    let count = if least == most { most.to_string() } else { format!("{least} to {most}") };
    format!(
        " The control of a session is the effect of random text of its length: the median of the stretches nearest in length, of {count} \
         without evidence that are drawn over the history of each case."
    )
}
