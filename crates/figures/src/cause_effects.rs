//! Effects of sessions: the largest, means by role with controls, divergences, and layer windows. Also holds wording shared by figures of
//! causes.

use super::axis::padded;
use super::curves::{around_zero, intervals};
use super::meaning::Meaning;
use super::rows::{Intervals, Line};
use super::sheet::{Across, Mark, Panel, Plain, Sample, Sheet, ValueAxis};
use super::style::{Colour, Stroke, UNIT, shortened};
use super::{Figure, Origin, captions};
use palimpsest_analysis::lens::band::Estimate;
use palimpsest_analysis::lens::causes::residue::{Residues, numbers};
use palimpsest_analysis::lens::causes::{
    CausedAnswer, CausedSession, Causes, Control, Intervention, OTHERS, Predictor, Window,
};
use palimpsest_analysis::lens::table::lines_csv;
use palimpsest_analysis::lens::{Correctness, Point, Series, Study};
use palimpsest_data::ground::csv::CsvTable;
use palimpsest_data::ground::numbers::percent;
use palimpsest_run::runs::causes::rows::Effect;
use palimpsest_run::runs::condition::label;

/// Effects have one sign in rows, tables and pictures.
pub(super) const AXIS: &str =
    "effect: fall of log p per token when hidden (nats; above 0: the answer needs it)";

/// Causes with the words that all their figures share.
pub(super) struct Told<'a> {
    pub causes: &'a Causes,
    pub origin: &'a Origin,
    pub segment: &'static str,
    pub segments: String,
    /// Plural.
    pub unit: &'static str,
    /// Definitions of the effect and of its control, for captions.
    pub effect: String,
    pub control: String,
    pub bands: String,
}

impl<'a> Told<'a> {
    pub fn of(causes: &'a Causes, study: &Study, origin: &'a Origin) -> Self {
        let (open, thoughts) = (open_in_words(causes.layers_open(), "the model's"), behind_thoughts(causes));
        Told {
            causes,
            origin,
            segment: study.segment(),
            segments: captions::plural(study.segment()),
            unit: causes.unit.many(),
            effect: format!(
                "The effect of a session is how far the answer's mean log-probability per token (natural logarithm, in nats) falls when everything \
                 from the question on is kept from seeing it; above 0, the answer needs it. Only direct paths are blocked: what other sessions took over from it still \
                 arrives.{open}{thoughts}"
            ),
            control: controls_in_words(causes),
            bands: intervals(causes.unit),
        }
    }

    pub fn stroke(&self, role: Option<&str>) -> Stroke {
        let Some(role) = role else { return Meaning::Others.stroke() };
        let mut others = self.causes.roles.iter().filter(|known| Meaning::of_role(known).is_none());
        let place = others.position(|known| known == role).unwrap_or(0);
        Meaning::of_role(role).unwrap_or(Meaning::Group(place)).stroke()
    }

    pub fn colour(&self, role: Option<&str>) -> Colour {
        self.stroke(role).colour
    }
}

/// Share of layers that still saw the blocked text; empty if 0.
pub(super) fn open_in_words(open: f64, whose: &str) -> String {
    let said = format!(
        " Only softmax layers were blocked: {}% of {whose} layers, the linear-attention ones, still saw the session.",
        percent(open)
    );
    if open > 0.0 { said } else { String::new() }
}

fn behind_thoughts(causes: &Causes) -> &'static str {
    if has_thoughts(causes) { " The answer is the text behind the thought." } else { "" }
}

pub(super) fn has_thoughts(causes: &Causes) -> bool {
    let mut sessions = causes.answers.iter().flat_map(|answer| &answer.sessions);
    sessions.any(|session| session.effect.thought.is_some())
}

fn controls_in_words(causes: &Causes) -> String {
    let Some((least, most)) = causes.pools() else { return " No controls were measured.".to_owned() };
    let count = if least == most { most.to_string() } else { format!("{least} to {most}") };
    format!(
        " The control of a session is the effect of random text of its length: the median of the stretches nearest in length, of {count} \
         without evidence that are drawn over the history of each case."
    )
}

pub(super) fn named(answer: &CausedAnswer, session: &CausedSession) -> String {
    let condition = match answer.condition.as_str() {
        "" => String::new(),
        condition => format!(" under {condition}"),
    };
    let span = session.span.replace('[', " ").replace(']', "");
    format!("{span} of {}, {}{condition}", answer.case, answer.probe)
}

pub(super) fn largest(told: &Told<'_>) -> Figure {
    let Told { causes, segment, segments, effect, control, .. } = told;
    let largest = causes.largest(12);
    let line = |(answer, session): &(&CausedAnswer, &CausedSession)| {
        let role = session.role.as_deref();
        Line {
            group: String::new(),
            label: format!("{} · {}", shortened(&named(answer, session), 60), role.unwrap_or(OTHERS)),
            estimate: Estimate { n: 0, value: Some(session.drop()), band: None, each: Vec::new() },
            colour: told.colour(role),
            mark: session.control.map(|control| control.drop),
        }
    };
    let all: usize = causes.answers.iter().map(|answer| answer.sessions.len()).sum();
    let caption = format!(
        "The {} largest of {all} effects by their size, each of one {segment} on one answer; {segments} are numbered from 0, as in the run's \
         files. {effect}{control} The figure's CSV has the divergences too.",
        largest.len()
    );
    let intervals = Intervals {
        axis: AXIS.to_owned(),
        mark: if causes.pools().is_some() { "control of the same length" } else { "" },
        lines: largest.iter().map(line).collect(),
        ..Intervals::default()
    };
    let csv = sessions(CsvTable::of(largest), false, |row| row).bytes();
    let title = format!("The {segments} with the largest effects");
    intervals.sheet().headed(told.origin, title).figure("causes-largest", caption, csv)
}

/// CSV columns of a session and its effect, optionally with the verdict.
pub(super) fn sessions<'a, R: Copy>(
    table: CsvTable<R>,
    with_verdict: bool,
    of: impl Fn(R) -> (&'a CausedAnswer, &'a CausedSession),
) -> CsvTable<R> {
    let (answer, session) = (|row| of(row).0, |row| of(row).1);
    table
        .column("case", |row| &answer(row).case)
        .column("probe", |row| &answer(row).probe)
        .column("condition", |row| label(&answer(row).condition))
        .column_if(with_verdict, "correct", |row| {
            answer(row).correct.map(|correct| correct.to_string()).unwrap_or_default()
        })
        .column("session", |row| &session(row).span)
        .optional("role", |row| session(row).role.as_ref())
        .column("tokens", |row| session(row).tokens)
        .column("effect", |row| session(row).drop())
        .optional("control", |row| session(row).control.map(|control| control.drop))
        .column("kl", |row| session(row).effect.kl)
        .column("kl_answer", |row| session(row).effect.kl_answer)
        .column("changed", |row| session(row).effect.changed)
}

const CONTROL: &str = ", control of the same length";

/// One line per role, and one for sessions without, if defined.
fn by_role(
    told: &Told<'_>,
    group: &str,
    ending: &str,
    of: impl Fn(Option<&str>) -> Option<Estimate>,
) -> Vec<Line> {
    let roles = told.causes.roles.iter().map(|role| Some(role.as_str())).chain([None]);
    let line = |role: Option<&str>| {
        let label = format!("{}{ending}", role.unwrap_or(OTHERS));
        let colour = if ending == CONTROL { Meaning::Baseline.colour() } else { told.colour(role) };
        Some(Line { group: group.to_owned(), label, estimate: of(role)?, colour, mark: None })
    };
    roles.filter_map(line).collect()
}

/// The lines of each verdict's answers, or of all if none was judged, and a word on that for the caption.
fn by_verdict(
    causes: &Causes,
    lines: impl Fn(&str, Correctness) -> Vec<Line>,
) -> (Vec<Line>, Option<&'static str>) {
    let judged = [Correctness::Correct, Correctness::Wrong];
    if judged.iter().any(|verdict| causes.effect(None, *verdict).is_some()) {
        let of_verdict = |verdict: Correctness| lines(&format!("{} answers", verdict.key()), verdict);
        return (judged.into_iter().flat_map(of_verdict).collect(), None);
    }
    (lines("", Correctness::All), Some(" There are no verdicts to tell answers apart by."))
}

fn has(causes: &Causes, kind: Intervention) -> bool {
    causes.predictors().contains(&Predictor::Intervention(kind))
}

/// Mean effects by role, split by verdict if available.
pub(super) fn means(told: &Told<'_>) -> Figure {
    use Intervention::Total;
    let Told { causes, segments, unit, effect, control, bands, .. } = told;
    let thought = |effect: &Effect| effect.thought.map_or(f64::NAN, |thought| thought.log_p_drop);
    let (lines, unsplit) = by_verdict(causes, |group, verdict| {
        let control = |role: Option<&str>| causes.control(role, verdict, |control| control.drop);
        let on_thought = |role: Option<&str>| causes.mean_of(role, verdict, thought);
        [
            by_role(told, group, "", |role| causes.effect(role, verdict)),
            by_role(told, group, CONTROL, control),
            by_role(told, group, ", removed", |role| causes.intervention(Total, role, verdict)),
            by_role(told, group, ", on the thought", on_thought),
        ]
        .concat()
    });
    let (axis, removed) = match has(causes, Total) {
        true => (
            "effect: fall of log p per token (nats; above 0: the answer needs it)",
            " Removed: the total effect, the session taken out and all after it computed anew, so that indirect paths count.",
        ),
        false => (AXIS, ""),
    };
    let thoughts = match has_thoughts(causes) {
        true => {
            " On the thought: the fall of the log-probability per token of the thought before the answer."
        }
        false => "",
    };
    let title = match unsplit {
        None => "Effects of each part of the history on right and wrong answers",
        Some(_) => "Effects of each part of the history on the answer",
    };
    let unsplit = unsplit.unwrap_or_default();
    let caption = format!(
        "{effect} Means over the {segments} in a role, then over answers and {unit}.{control}{removed}{thoughts}{unsplit} {bands}"
    );
    let intervals = Intervals { axis: axis.to_owned(), lines, ..Intervals::default() };
    intervals.figure("causes-effects", (title.to_owned(), told.origin), caption)
}

/// Mean effects of forcing, by role and verdict, if there are some. They have an axis of their own: they may be many times the direct
/// effects, and a fall says that the answer loses by the session.
pub(super) fn forced(told: &Told<'_>) -> Option<Figure> {
    let Told { causes, segment, segments, unit, bands, .. } = told;
    let (lines, unsplit) = by_verdict(causes, |group, verdict| {
        by_role(told, group, "", |role| causes.intervention(Intervention::Forced, role, verdict))
    });
    let unsplit = unsplit.unwrap_or_default();
    let caption = format!(
        "From the question on, layers with a sliding window or an indexer see the keys of a {segment} beside those that they choose. The effect \
         is how far the answer's mean log-probability per token (natural logarithm, in nats) falls; below 0 the answer gains by the {segment}, above 0 \
         it loses. Means over the {segments} in a role, then over answers and {unit}.{unsplit} {bands}"
    );
    let axis = "fall of log p per token when shown (nats; below 0: the answer gains)".to_owned();
    let intervals = Intervals { axis, lines, ..Intervals::default() };
    let title = format!("Effects of showing a {segment} to windows and indexers");
    has(causes, Intervention::Forced)
        .then(|| intervals.figure("causes-forced", (title, told.origin), caption))
}

/// Mean KL divergence by role: first token, and all tokens.
pub(super) fn divergences(told: &Told<'_>) -> Figure {
    type Numbers = (fn(&Effect) -> f64, fn(&Control) -> f64);
    let Told { causes, segment, segments, unit, control, bands, .. } = told;
    let kinds: [(&str, Numbers); 2] = [
        ("first token of the answer", (|effect| effect.kl, |control| control.kl)),
        ("all tokens of the answer, mean", (|effect| effect.kl_answer, |control| control.kl_answer)),
    ];
    let of_kind = |(group, (of, of_control)): (&str, Numbers)| {
        let control = |role: Option<&str>| causes.control(role, Correctness::All, of_control);
        let effect = |role: Option<&str>| causes.mean_of(role, Correctness::All, of);
        [by_role(told, group, "", effect), by_role(told, group, CONTROL, control)].concat()
    };
    let (open, thoughts) = (open_in_words(causes.layers_open(), "the model's"), behind_thoughts(causes));
    let caption = format!(
        "Kullback-Leibler divergence, in nats, of the next token's distribution with a {segment} blocked from the one as it was: at the \
         answer's first token, and averaged over all of its tokens. Where only the first moves, the {segment} decides how the answer \
         begins; where only the mean does, what it says later on. Means over the {segments} in a role, then over answers and \
         {unit}.{open}{thoughts}{control} {bands}"
    );
    let lines = kinds.into_iter().flat_map(of_kind).collect();
    let intervals = Intervals { axis: "divergence (nats)".to_owned(), lines, ..Intervals::default() };
    let title = format!("How far a blocked {segment} moves the answer's distribution");
    intervals.figure("causes-kl", (title, told.origin), caption)
}

pub(super) fn windows(told: &Told<'_>) -> Figure {
    let Told { causes, segment, bands, .. } = told;
    let of_role = |role: &str| {
        let stroke = told.stroke(Some(role).filter(|role| *role != OTHERS));
        (role.to_owned(), stroke, causes.by_window(Some(role)))
    };
    let controls =
        ("controls of the evidence".to_owned(), Meaning::Baseline.stroke(), causes.by_window(None));
    let mut series: Vec<(String, Stroke, Series)> =
        causes.windowed_roles().into_iter().map(of_role).chain([controls]).collect();
    series.retain(|(.., series)| series.n > 0);
    let middle = series.len().saturating_sub(1) as f64 / 2.0;
    let apart = 0.6 * causes.window_width() as f64 / series.len().max(1) as f64;
    let steps = series.iter().enumerate().flat_map(|(nth, (_, stroke, series))| {
        steps(*stroke, &series.points, &causes.windows, (nth as f64 - middle) * apart)
    });
    let layers = causes.layers.iter().map(|layer| layer.index.to_string()).collect();
    let panel = Panel {
        marks: steps.collect(),
        x: Across::Names(layers),
        x_label: "layer".to_owned(),
        ..Panel::default()
    };
    let legend =
        series.iter().map(|(label, line, of)| (Sample::Line(*line), format!("{label} (n = {})", of.n)));
    let width = captions::counted(causes.window_width(), "layer");
    let open = open_in_words(causes.windows_open(), "the windows'");
    let caption = format!(
        "A {segment} is blocked at {width} at a time, window by window; a step spans the layers of a window. The effect is how far the \
         answer's mean log-probability per token (nats) falls; above 0, the answer needs the {segment} there. The effects of windows need not \
         add up to that of all layers.{open} Controls: random text of the evidence's length, without evidence. {bands}"
    );
    let csv = lines_csv(series.iter().map(|(label, _, series)| (label.as_str(), series)));
    let points = series.iter().flat_map(|(.., series)| &series.points);
    let axis = around_zero(points);
    let sheet = Sheet {
        y_label: AXIS.to_owned(),
        axes: vec![ValueAxis { linear: axis.linear.map(padded), ..axis }],
        rows: vec![vec![panel]],
        legend: legend.collect(),
        panel: (560, 230),
        ..Sheet::default()
    };
    let title = "Effects of each part of the history by windows of layers".to_owned();
    sheet.headed(told.origin, title).figure("causes-by-window", caption, csv)
}

/// A line over each window's layers, with whisker or single cases in its middle, moved by `aside`.
fn steps(stroke: Stroke, points: &[Point], windows: &[Window], aside: f64) -> Vec<Mark> {
    let plain = |places| {
        Mark::Path(places, Plain { ink: stroke.colour.into(), width: stroke.width(), dash: stroke.dashes() })
    };
    let whisker =
        |places| Mark::Path(places, Plain { ink: stroke.colour.mix(0.6), width: UNIT * 3 / 2, dash: None });
    let of_window = |[start, end]: &Window| {
        let within = |(_, point): &(usize, &Point)| (*start..*end).contains(&point.layer.index);
        let places: Vec<(usize, &Point)> = points.iter().enumerate().filter(within).collect();
        let ([(first, point), ..], Some((last, _))) = (&places[..], places.last()) else { return Vec::new() };
        let Some(value) = point.value else { return Vec::new() };
        let (from, to) = (*first as f64 - 0.5, *last as f64 + 0.5);
        let at = (from + to) / 2.0 + aside;
        let band = point.band.map(|(low, high)| whisker(vec![(at, low), (at, high)]));
        let cases =
            point.cases.iter().map(|case| Mark::Dot((at, *case), UNIT * 3 / 2, stroke.colour.mix(0.55)));
        let line = [plain(vec![(from, value), (to, value)]), Mark::Line(stroke, vec![Some((at, value))])];
        band.into_iter().chain(cases).chain(line).collect()
    };
    windows.iter().flat_map(of_window).collect()
}

/// Direct, total and residual effects by role, and carriers by distance; `None` if no total effect and no carrier was measured.
pub(super) fn residue(residues: &Residues, title: String, origin: &Origin) -> Option<Figure> {
    let (axis, needs) = match residues.of_contrasts {
        true => ("effect: fall of the contrast (nats)", "above 0 the contrast needs the session"),
        false => (AXIS, "above 0 the answer needs the session"),
    };
    let lines = residues.roles().into_iter().flat_map(|role| {
        let own = Meaning::of_role(role).unwrap_or(Meaning::Group(0)).colour();
        numbers(residues, role).into_iter().map(move |(label, estimate, is_left)| {
            let colour = if is_left { Meaning::Others.colour() } else { own };
            Line { group: role.to_owned(), label, estimate, colour, mark: None }
        })
    });
    let has_thoughts = residues.sessions.iter().any(|one| one.thought.through().is_some());
    let thoughts = match has_thoughts {
        true => {
            " Through the thought: what hiding the session from the rows of the thought too takes beyond hiding it from question and answer. \
             Carried by a third of the thought: the same for the rows of each of its sentences by itself."
        }
        false => "",
    };
    let caption = format!(
        "Direct: the session is hidden from everything from the question on, as its eviction from a cache does. Removed, replaced by neutral text \
         of equal length, hidden from all later rows: it plays no part. Left: that less the direct effect, which is held by later positions. \
         Carried: what hiding the session from later sessions at such a distance, each by itself, takes beyond the direct effect.{thoughts} Means over the \
         sessions in a role and the answers of a case, then over cases; {needs}."
    );
    let intervals = Intervals { axis: axis.to_owned(), lines: lines.collect(), ..Intervals::default() };
    residues.is_measured().then(|| intervals.figure("causes-left-behind", (title, origin), caption))
}
