//! What answers owe to their sessions by the layers at which sessions were blocked: `causes --windows N`.

use std::collections::BTreeMap;

use super::group::mean_by_layer;
use super::strip::Place;
use crate::run::cause_rows::CauseRow;

/// Layers that were blocked together, half-open.
type Window = [usize; 2];

/// An answer of which windows of layers were blocked.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowedAnswer {
    /// The case's id.
    pub case: String,
    /// The probe's id.
    pub probe: String,
    /// The condition; empty for the plain one.
    pub condition: String,
    /// Its sessions, in the order of the history.
    pub sessions: Vec<WindowedSession>,
}

/// A session of it.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowedSession {
    /// Its name.
    pub span: String,
    /// The part that it plays, if any.
    pub role: Option<String>,
    /// Where it begins.
    start: usize,
    /// What the answer's natural-log probability a token loses without it at some layers, and without its control, if it has one.
    effects: BTreeMap<Window, (f64, Option<f64>)>,
}

/// The mean over units of what answers owe to each place of a history.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectMap {
    /// The probe, or all of them.
    pub probe: Option<String>,
    /// Units in it.
    pub n: usize,
    /// By place: how many units have a session there, and the mean over them by layer (`None` without units).
    pub cells: Vec<(Place, usize, Option<Vec<f64>>)>,
}

impl WindowedAnswer {
    /// The layers that were blocked.
    pub(super) fn layers(&self) -> impl Iterator<Item = usize> {
        let windows = self.sessions.iter().flat_map(|session| session.effects.keys());
        windows.flat_map(|[start, end]| *start..*end)
    }
}

impl WindowedSession {
    /// The effect by layer, each layer with that of its window; NaN where it was not blocked.
    pub fn by_layer(&self, layers: &[usize]) -> Vec<f64> {
        layers.iter().map(|layer| self.at(*layer).map_or(f64::NAN, |(effect, _)| effect)).collect()
    }

    /// The effect of its control by layer.
    pub fn control_by_layer(&self, layers: &[usize]) -> Vec<f64> {
        let control = |layer: &usize| self.at(*layer).and_then(|(_, control)| control).unwrap_or(f64::NAN);
        layers.iter().map(control).collect()
    }

    fn at(&self, layer: usize) -> Option<(f64, Option<f64>)> {
        let holds = |window: &&Window| (window[0]..window[1]).contains(&layer);
        self.effects.iter().find(|(window, _)| holds(window)).map(|(_, effect)| *effect)
    }
}

/// The answers of rows that name layers, in the order in which they were measured. Of windows of several widths those that were measured
/// last are kept: an effect at a layer is that of one window.
pub(super) fn answers(rows: Vec<CauseRow>) -> Vec<WindowedAnswer> {
    let most = rows.iter().filter_map(|row| row.layers).map(|[_, end]| end).max().unwrap_or(0);
    // Windows are measured from the first layers on; the last one of a decoder may be narrower.
    let (mut width, mut behind) = (0, [usize::MAX, 0]);
    for [start, end] in rows.iter().rev().filter_map(|row| row.layers) {
        if start > behind[0] || (start == behind[0] && end != behind[1]) {
            break;
        }
        (width, behind) = (width.max(end - start), [start, end]);
    }
    if width == 0 {
        return Vec::new();
    }
    let is_kept = |[start, end]: &Window| start % width == 0 && *end == (start + width).min(most);
    let mut answers: Vec<WindowedAnswer> = Vec::new();
    let mut places: BTreeMap<[String; 3], usize> = BTreeMap::new();
    for row in rows {
        let Some(window) = row.layers.filter(is_kept) else { continue };
        let CauseRow { case, probe, condition, span, role, .. } = row;
        let at = *places.entry([case.clone(), probe.clone(), condition.clone()]).or_insert(answers.len());
        if at == answers.len() {
            answers.push(WindowedAnswer { case, probe, condition, sessions: Vec::new() });
        }
        let sessions = &mut answers[at].sessions;
        let at = sessions.iter().position(|session| session.span == span).unwrap_or(sessions.len());
        if at == sessions.len() {
            sessions.push(WindowedSession { span, role, start: row.tokens[0], effects: BTreeMap::new() });
        }
        let control = row.control.map(|control| -control.effect.log_p);
        sessions[at].effects.insert(window, (-row.effect.log_p, control));
    }
    answers.iter_mut().for_each(|answer| answer.sessions.sort_by_key(|session| session.start));
    answers
}

/// The effects of an answer's sessions at a place, averaged over those there; `None` where there is none.
pub(super) fn at_place(
    answer: &WindowedAnswer,
    anchors: &[&str],
    place: Place,
    layers: &[usize],
) -> Option<Vec<f64>> {
    let roles: Vec<Option<&str>> = answer.sessions.iter().map(|session| session.role.as_deref()).collect();
    let here = place.segments(&roles, |_| true, anchors)?;
    let effects: Vec<Vec<f64>> =
        answer.sessions.get(here)?.iter().map(|session| session.by_layer(layers)).collect();
    mean_by_layer(effects.iter().map(Vec::as_slice), layers.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cause_rows::Effect;

    fn row(probe: &str, span: usize, layers: Window) -> CauseRow {
        let effect = Effect { log_p: -(layers[0] as f64), kl: 0.0, changed: false };
        CauseRow {
            case: "c".to_owned(),
            probe: probe.to_owned(),
            condition: String::new(),
            span: format!("session[{span}]"),
            role: None,
            tokens: [10 * span, 10 * span + 9],
            layers: Some(layers),
            seed: 0,
            answer_tokens: 1,
            log_p: 0.0,
            effect,
            control: None,
        }
    }

    #[test]
    fn the_windows_that_were_measured_last_are_kept_whatever_their_width() {
        let measured = |windows: &[Window]| -> Vec<CauseRow> {
            let of_probe =
                |probe| windows.iter().flat_map(move |layers| [1, 0].map(|span| row(probe, span, *layers)));
            ["P", "Q"].into_iter().flat_map(of_probe).collect()
        };
        let [two, three, five] = [&[[0, 2], [2, 4], [4, 5]][..], &[[0, 3], [3, 5]], &[[0, 5]]].map(measured);
        let kept = |order: &[&Vec<CauseRow>]| {
            let found = answers(order.iter().flat_map(|rows| rows.iter().cloned()).collect());
            assert_eq!(found.len(), 2);
            let spans: Vec<&str> = found[0].sessions.iter().map(|session| session.span.as_str()).collect();
            assert_eq!(spans, ["session[0]", "session[1]"], "the history's order");
            found[1].sessions[0].by_layer(&[0, 1, 2, 3, 4])
        };
        assert_eq!(kept(&[&two]), [0.0, 0.0, 2.0, 2.0, 4.0]);
        assert_eq!(kept(&[&two, &three]), [0.0, 0.0, 0.0, 3.0, 3.0]);
        assert_eq!(kept(&[&three, &two]), [0.0, 0.0, 2.0, 2.0, 4.0]);
        assert_eq!(kept(&[&three, &five]), [0.0; 5]);
        assert_eq!(kept(&[&five, &two]), [0.0, 0.0, 2.0, 2.0, 4.0]);
        // A measure that was stopped after its first window.
        let begun: Vec<CauseRow> = three[..2].to_vec();
        let found = answers([two, begun].concat());
        assert_eq!(found.len(), 1);
        let of_first = found[0].sessions[0].by_layer(&[0, 2, 3]);
        assert!(of_first[..2] == [0.0, 0.0] && of_first[2].is_nan());
    }
}
