//! Colours of roles and sentences of captions that the figures of causes share.

use plotters::style::RGBColor;

use super::style::{BLUE, GREEN, VERMILLION};
use crate::ground::numbers::percent;
use crate::lens::causes::Causes;

/// Of sessions without a role.
pub(super) const PALE: RGBColor = RGBColor(0xa8, 0xa8, 0xa8);

/// Of sessions in a role, by its place among the roles.
pub(super) fn colour(role: usize) -> RGBColor {
    [GREEN, VERMILLION, BLUE][role % 3]
}

/// The effect of a session, for captions.
pub(super) fn effect_in_words(causes: &Causes) -> String {
    format!(
        "The effect of a session is the natural-log probability a token that the answer loses when everything from the question on is kept \
         from seeing it; above 0, the answer needs it. Only direct paths are blocked: what other sessions took over from it still \
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

/// Whether some answer has a thought before it.
pub(super) fn has_thoughts(causes: &Causes) -> bool {
    let mut sessions = causes.answers.iter().flat_map(|answer| &answer.sessions);
    sessions.any(|session| session.effect.thought.is_some())
}

/// How controls are made, for captions.
pub(super) fn controls_in_words(causes: &Causes) -> String {
    let Some((least, most)) = causes.pools() else { return " No controls were measured.".to_owned() };
    let count = if least == most { most.to_string() } else { format!("{least} to {most}") };
    format!(
        " The control of a session is the effect of random text of its length: the median of the stretches nearest in length, of {count} \
         without evidence that are drawn over the history of each case."
    )
}
