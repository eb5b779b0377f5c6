//! Effects of sessions by blocked layer window: `causes --windows N`.

use std::collections::{BTreeMap, BTreeSet};

use super::halves::{HeldOut, choose, halves};
use super::{Causes, OTHERS, UnitName, averaged, estimate};
use crate::lens::Series;
use crate::lens::band::Numbers;
use crate::lens::layers::mean_by_layer;
use crate::lens::strip::{AlignedCells, AlignedPlace, aligned};
use palimpsest_run::runs::causes::control_pool::Pools;
use palimpsest_run::runs::causes::rows::CauseRow;
use palimpsest_run::runs::rows::AnswerKey;

/// Layers blocked together, half-open.
pub type Window = [usize; 2];

#[derive(Debug, Clone, PartialEq)]
pub struct WindowedAnswer {
    pub case: String,
    pub probe: String,
    pub condition: String,
    pub sessions: Vec<WindowedSession>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct WindowedSession {
    pub span: String,
    pub role: Option<String>,
    start: usize,
    effects: BTreeMap<Window, WindowEffect>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct WindowEffect {
    drop: f64,
    /// The same for random text of equal length; NaN without a pool.
    control: f64,
    /// Share of the window's layers that still saw the session.
    open: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EffectMap {
    pub probe: Option<String>,
    pub n: usize,
    pub cells: AlignedCells,
}

impl WindowedAnswer {
    pub(super) fn layers(&self) -> impl Iterator<Item = usize> {
        let windows = self.sessions.iter().flat_map(|session| session.effects.keys());
        windows.flat_map(|[start, end]| *start..*end)
    }
}

impl WindowedSession {
    /// Each layer has its window's effect; NaN where not blocked.
    pub fn by_layer(&self, layers: &[usize]) -> Vec<f64> {
        self.of_layers(layers, |effect| effect.drop)
    }

    fn of_layers(&self, layers: &[usize], of: fn(&WindowEffect) -> f64) -> Vec<f64> {
        let at = |layer: &usize| self.effects.iter().find(|([start, end], _)| (*start..*end).contains(layer));
        layers.iter().map(|layer| at(layer).map_or(f64::NAN, |(_, effect)| of(effect))).collect()
    }
}

/// True if a session has this role; [`OTHERS`] means no role.
fn plays(session: &WindowedSession, role: &str) -> bool {
    session.role.as_deref().unwrap_or(OTHERS) == role
}

impl Causes {
    pub fn has_windows(&self) -> bool {
        !self.windowed.is_empty()
    }

    pub fn windowed_roles(&self) -> Vec<&str> {
        let played = |role: &&str| self.windowed_sessions().any(|(_, session)| plays(session, role));
        self.roles.iter().map(String::as_str).chain([OTHERS]).filter(played).collect()
    }

    pub fn windowed_units(&self) -> usize {
        let units = self.windowed.iter().map(|answer| self.unit_name(&answer.case, &answer.probe));
        units.collect::<BTreeSet<UnitName>>().len()
    }

    fn windowed_sessions(&self) -> impl Iterator<Item = (&WindowedAnswer, &WindowedSession)> {
        self.windowed.iter().flat_map(|answer| answer.sessions.iter().map(move |session| (answer, session)))
    }

    pub fn window_width(&self) -> usize {
        self.windows.iter().map(|[start, end]| end - start).max().unwrap_or(0)
    }

    /// Share of the blocked windows' layers that still saw a session: linear-attention layers keep no keys to block.
    pub fn windows_open(&self) -> f64 {
        let effects = self.windowed_sessions().flat_map(|(_, session)| &session.effects);
        let widths = effects.map(|([start, end], effect)| ((end - start) as f64, effect.open));
        let (open, all) =
            widths.fold((0.0, 0.0), |(open, all), (width, of)| (open + width * of, all + width));
        if all > 0.0 { open / all } else { 0.0 }
    }

    /// Mean effect of a role's sessions by layer, each layer with its window's effect. Without a role: the controls of sessions with one.
    pub fn by_window(&self, role: Option<&str>) -> Series {
        let layers = self.layer_numbers();
        let rows = self.windowed_sessions().filter_map(|(answer, session)| {
            let values = match role {
                Some(role) => plays(session, role).then(|| session.by_layer(&layers)),
                None => session.role.is_some().then(|| session.of_layers(&layers, |effect| effect.control)),
            };
            Some((self.unit_name(&answer.case, &answer.probe), values?))
        });
        let rows: Vec<Vec<f64>> = averaged(rows, layers.len()).into_values().collect();
        self.series(role.unwrap_or("control").to_owned(), &rows, Numbers::Signed)
    }

    /// Window with the largest loss for a role, chosen on one half of the units and measured on the other, both ways. `None` with too few
    /// units or a single window.
    pub fn best_window(&self, role: &str) -> Option<HeldOut<Window>> {
        if self.windows.len() < 2 {
            return None;
        }
        let rows = self.windowed_sessions().filter(|(_, session)| plays(session, role));
        let rows = rows.map(|(answer, session)| {
            let effect = |window| session.effects.get(window).map_or(f64::NAN, |effect| effect.drop);
            (self.unit_name(&answer.case, &answer.probe), self.windows.iter().map(effect).collect())
        });
        let by_unit = averaged(rows, self.windows.len());
        let halves = halves(by_unit.keys().cloned().collect(), self.seed)?;
        let (chosen, values) = choose(&halves, &by_unit, &by_unit)?;
        let estimate = estimate(&values, Numbers::Signed)?;
        Some(HeldOut { chosen: chosen.map(|at| self.windows[at]), estimate })
    }

    /// Mean over units of effects by layer and history position, aligned at the evidence; for one probe's answers or all.
    pub fn effect_map(&self, probe: Option<&str>, anchors: &[&str]) -> EffectMap {
        let layers = self.layer_numbers();
        let mut units: BTreeMap<UnitName, Vec<&WindowedAnswer>> = BTreeMap::new();
        for answer in self.windowed.iter().filter(|answer| probe.is_none_or(|probe| answer.probe == probe)) {
            units.entry(self.unit_name(&answer.case, &answer.probe)).or_default().push(answer);
        }
        let at_place = |answer: &&WindowedAnswer, place: AlignedPlace| {
            let roles: Vec<Option<&str>> =
                answer.sessions.iter().map(|session| session.role.as_deref()).collect();
            let here = place.segments(&roles, |_| true, anchors)?;
            let sessions = answer.sessions.get(here)?.iter();
            mean_by_layer(sessions.map(|session| session.by_layer(&layers)), layers.len())
        };
        let cells = aligned(units.values(), (anchors, layers.len()), at_place);
        EffectMap { probe: probe.map(str::to_owned), n: units.len(), cells }
    }
}

/// Windows in ascending order, and answers in order of measurement. With several window widths, keeps the last measured.
pub(super) fn answers(rows: Vec<CauseRow>, pools: &Pools) -> (Vec<Window>, Vec<WindowedAnswer>) {
    let most = rows.iter().filter_map(|row| row.layers).map(|[_, end]| end).max().unwrap_or(0);
    // Windows are measured in ascending order; the last one may be narrower.
    let (mut width, mut behind) = (0, [usize::MAX, 0]);
    for [start, end] in rows.iter().rev().filter_map(|row| row.layers) {
        if start > behind[0] || (start == behind[0] && end != behind[1]) {
            break;
        }
        (width, behind) = (width.max(end - start), [start, end]);
    }
    if width == 0 {
        return (Vec::new(), Vec::new());
    }
    let is_kept = |[start, end]: &Window| start % width == 0 && *end == (start + width).min(most);
    let windows: BTreeSet<Window> = rows.iter().filter_map(|row| row.layers.filter(is_kept)).collect();
    let mut answers: Vec<WindowedAnswer> = Vec::new();
    let mut places: BTreeMap<AnswerKey, usize> = BTreeMap::new();
    for row in rows {
        let Some(window) = row.layers.filter(is_kept) else { continue };
        let control =
            pools.control(&row, |effect| effect.log_p_drop).map_or(f64::NAN, |control| control + 0.0);
        let CauseRow { answer, span, role, .. } = row;
        let at = *places.entry(answer.clone()).or_insert(answers.len());
        if at == answers.len() {
            let AnswerKey { case, probe, condition } = answer;
            answers.push(WindowedAnswer { case, probe, condition, sessions: Vec::new() });
        }
        let sessions = &mut answers[at].sessions;
        let at = sessions.iter().position(|session| session.span == span).unwrap_or(sessions.len());
        if at == sessions.len() {
            sessions.push(WindowedSession { span, role, start: row.tokens[0], effects: BTreeMap::new() });
        }
        let effect =
            WindowEffect { drop: row.effect.log_p_drop + 0.0, control, open: row.layers_open.unwrap_or(0.0) };
        sessions[at].effects.insert(window, effect);
    }
    answers.iter_mut().for_each(|answer| answer.sessions.sort_by_key(|session| session.start));
    (windows.into_iter().collect(), answers)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lens::{Layer, LayerKind};
    use palimpsest_data::case::draw::Draws;
    use palimpsest_run::runs::causes::rows::{Effect, NamedEffect};

    fn row(probe: &str, span: usize, layers: Window) -> CauseRow {
        let row = json!({
            "case": "c", "probe": probe, "condition": "", "span": format!("session[{span}]"), "seed": 0, "layers": layers,
            "tokens": [10 * span, 10 * span + 9], "answer_tokens": 1, "log_p": 0.0,
            "effect": { "log_p_drop": layers[0], "kl": 0.0, "kl_answer": 0.0, "changed": false },
        });
        serde_json::from_value(row).unwrap()
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
            let (windows, found) =
                answers(order.iter().flat_map(|rows| rows.iter().cloned()).collect(), &Pools::default());
            assert_eq!(found.len(), 2);
            let own: Vec<Window> = found[1].sessions[0].effects.keys().copied().collect();
            assert_eq!(windows, own);
            let spans: Vec<&str> = found[0].sessions.iter().map(|session| session.span.as_str()).collect();
            assert_eq!(spans, ["session[0]", "session[1]"], "the history's order");
            found[1].sessions[0].by_layer(&[0, 1, 2, 3, 4])
        };
        assert_eq!(kept(&[&two]), [0.0, 0.0, 2.0, 2.0, 4.0]);
        assert_eq!(kept(&[&two, &three]), [0.0, 0.0, 0.0, 3.0, 3.0]);
        assert_eq!(kept(&[&three, &two]), [0.0, 0.0, 2.0, 2.0, 4.0]);
        assert_eq!(kept(&[&three, &five]), [0.0; 5]);
        assert_eq!(kept(&[&five, &two]), [0.0, 0.0, 2.0, 2.0, 4.0]);
        let begun: Vec<CauseRow> = three[..2].to_vec();
        let (windows, found) = answers([two, begun].concat(), &Pools::default());
        assert_eq!((windows, found.len()), (vec![[0, 3]], 1));
        let of_first = found[0].sessions[0].by_layer(&[0, 2, 3]);
        assert!(of_first[..2] == [0.0, 0.0] && of_first[2].is_nan());
    }

    /// Twelve cases of one session each in role `old`, blocked at three windows of two layers: noise, and an effect at the second.
    fn causes() -> Causes {
        let mut draws = Draws::new("windows", 0, "");
        let mut rows = Vec::new();
        for case in 0..12 {
            for layers in [[0, 2], [2, 4], [4, 6]] {
                let noise = draws.index(2001) as f64 / 1000.0 - 1.0;
                let log_p_drop = noise + if layers == [2, 4] { 10.0 } else { 0.0 };
                let plain = row("P", 0, layers);
                let effect = NamedEffect::Effect(Effect { log_p_drop, ..*plain.effect });
                rows.push(CauseRow {
                    answer: AnswerKey::of(&format!("{case:02}"), "P", "").owned(),
                    role: Some("old".to_owned()),
                    effect,
                    ..plain
                });
            }
        }
        let (windows, windowed) = answers(rows, &Pools::default());
        let layers = (0..6).map(|index| Layer { index, kind: LayerKind::Softmax }).collect();
        let roles = vec!["old".to_owned()];
        Causes { layers, roles, windows, windowed, ..Causes::default() }
    }

    #[test]
    fn the_layers_through_which_most_is_lost_are_chosen_and_measured_on_different_cases() {
        // Well above noise, both halves choose the window, and the estimate is its mean over all cases.
        let clear = causes();
        let best = clear.best_window("old").unwrap();
        assert_eq!(best.chosen, [[2, 4]; 2]);
        let point = &clear.by_window(Some("old")).points[2];
        assert_eq!((best.estimate.value, best.estimate.band), (point.value, point.band));
        assert_eq!(clear.best_window("new"), None);
    }
}
