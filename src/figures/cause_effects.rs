//! The effects of sessions: the largest by name, means by role with their controls, divergences, and effects by windows of layers.

use super::cause_captions::{
    AXIS, colour, controls_in_words, effect_in_words, has_thoughts, meaning_of, open_in_words,
};
use super::curves::{bands, over_layers};
use super::intervals::{Intervals, Line};
use super::meaning::Meaning;
use super::sheet::Panel;
use super::style::{Stroke, shortened};
use super::{Figure, FigureError, Origin, captions};
use crate::ground::csv::CsvTable;
use crate::lens::band::Estimate;
use crate::lens::causes::{CausedAnswer, CausedSession, Causes, Control, OTHERS};
use crate::lens::table::lines_csv;
use crate::lens::{Correctness, Series, Study};
use crate::run::causes::rows::Effect;
use crate::run::condition::label;

/// Effects that are drawn by name.
const LARGEST: usize = 12;

/// A session with its case, probe and condition: `session[6] of c1, SR`.
pub(super) fn named(answer: &CausedAnswer, session: &CausedSession) -> String {
    let condition = match answer.condition.as_str() {
        "" => String::new(),
        condition => format!(" under {condition}"),
    };
    format!("{} of {}, {}{condition}", session.span, answer.case, answer.probe)
}

/// The sessions with the largest effects, by name.
pub(super) fn largest(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    let segment = study.segment();
    let largest = causes.largest(LARGEST);
    let line = |(answer, session): &(&CausedAnswer, &CausedSession)| Line {
        group: String::new(),
        label: format!(
            "{} · {}",
            shortened(&named(answer, session), 60),
            session.role.as_deref().unwrap_or(OTHERS)
        ),
        estimate: Estimate { n: 0, value: Some(session.drop()), band: None, each: Vec::new() },
        colour: colour(causes, session.role.as_deref()),
        mark: session.control.map(|control| control.drop),
    };
    let all: usize = causes.answers.iter().map(|answer| answer.sessions.len()).sum();
    let intervals = Intervals {
        name: "causes-largest".to_owned(),
        title: origin.titled(format!("The {} with the largest effects", captions::plural(segment))),
        origin: origin.line.clone(),
        caption: format!(
            "The {} largest of {all} effects by their size, each of one {segment} on one answer; {} are numbered from 0, as in the run's \
             files. {}{} The table beside the figure has the divergences too.",
            largest.len(),
            captions::plural(segment),
            effect_in_words(causes),
            controls_in_words(causes)
        ),
        axis: AXIS.to_owned(),
        mark: match causes.pools() {
            Some(_) => "control of the same length",
            None => "",
        },
        lines: largest.iter().map(line).collect(),
        ..Intervals::default()
    };
    let figure = intervals.figure()?;
    let csv = sessions(CsvTable::of(largest), false, |row| row).bytes();
    Ok(Figure { csv, ..figure })
}

/// The columns of a session and its effect, with the answer's verdict where it is wanted.
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
        .column_if(with_verdict, "correct", |row| match answer(row).correct {
            None => String::new(),
            Some(correct) => correct.to_string(),
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

/// The end of the labels of controls.
const CONTROL: &str = ", control of the same length";

/// Lines of a group: one for each role, and for none, that has a number.
fn by_role(
    causes: &Causes,
    group: &str,
    ending: &str,
    of: impl Fn(Option<&str>) -> Option<Estimate>,
) -> Vec<Line> {
    let roles = causes.roles.iter().map(|role| Some(role.as_str())).chain([None]);
    let line = |role: Option<&str>| {
        Some(Line {
            group: group.to_owned(),
            label: format!("{}{ending}", role.unwrap_or(OTHERS)),
            estimate: of(role)?,
            colour: match ending {
                CONTROL => Meaning::Baseline.colour(),
                _ => colour(causes, role),
            },
            mark: None,
        })
    };
    roles.filter_map(line).collect()
}

/// Mean effects by role, for right and wrong answers where they are judged.
pub(super) fn means(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    let judged = [Correctness::Correct, Correctness::Wrong];
    let split = judged.iter().any(|verdict| causes.effect(None, *verdict).is_some());
    let groups = if split { judged.to_vec() } else { vec![Correctness::All] };
    let thought = |effect: &Effect| effect.thought.map_or(f64::NAN, |thought| thought.log_p_drop);
    let of_verdict = |verdict: Correctness| {
        let group = &if split { format!("{} answers", verdict.key()) } else { String::new() };
        let control = |role: Option<&str>| causes.control(role, verdict, |control| control.drop);
        let on_thought = |role: Option<&str>| causes.mean_of(role, verdict, thought);
        [
            by_role(causes, group, "", |role| causes.effect(role, verdict)),
            by_role(causes, group, CONTROL, control),
            by_role(causes, group, ", removed", |role| causes.total(role, verdict)),
            by_role(causes, group, ", on the thought", on_thought),
        ]
        .concat()
    };
    let removed = match causes.total(None, Correctness::All) {
        Some(_) => {
            " Removed: the total effect, the session taken out and all after it read again, so that indirect paths count."
        }
        None => "",
    };
    let thoughts = match has_thoughts(causes) {
        true => {
            " On the thought: the fall of the log-probability per token of the thought before the answer."
        }
        false => "",
    };
    let told = if split { "" } else { " There are no verdicts to tell answers apart by." };
    Intervals {
        name: "causes-effects".to_owned(),
        title: origin.titled(match split {
            true => "Effects of each part of the history on right and wrong answers".to_owned(),
            false => "Effects of each part of the history on the answer".to_owned(),
        }),
        origin: origin.line.clone(),
        caption: format!(
            "{} Means over the {} in a role, then over answers and {}.{}{removed}{thoughts}{told} {}",
            effect_in_words(causes),
            captions::plural(study.segment()),
            causes.unit.many(),
            controls_in_words(causes),
            bands(causes.unit)
        ),
        axis: AXIS.to_owned(),
        lines: groups.into_iter().flat_map(of_verdict).collect(),
        ..Intervals::default()
    }
    .figure()
}

/// Mean divergences by role: of the answer's first token, and over all of its tokens.
pub(super) fn divergences(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    type Numbers = (fn(&Effect) -> f64, fn(&Control) -> f64);
    let kinds: [(&str, Numbers); 2] = [
        ("first token of the answer", (|effect| effect.kl, |control| control.kl)),
        ("all tokens of the answer, mean", (|effect| effect.kl_answer, |control| control.kl_answer)),
    ];
    let of_kind = |(group, (of, of_control)): (&str, Numbers)| {
        let control = |role: Option<&str>| causes.control(role, Correctness::All, of_control);
        let effect = |role: Option<&str>| causes.mean_of(role, Correctness::All, of);
        [by_role(causes, group, "", effect), by_role(causes, group, CONTROL, control)].concat()
    };
    let (segment, unit) = (study.segment(), causes.unit.many());
    Intervals {
        name: "causes-kl".to_owned(),
        title: origin.titled(format!("How far a blocked {segment} moves the answer's distribution")),
        origin: origin.line.clone(),
        caption: format!(
            "Kullback-Leibler divergence, in nats, of the next token's distribution with a {segment} blocked from the one as it was: at the \
             answer's first token, and averaged over all of its tokens. Where only the first moves, the {segment} decides how the answer \
             begins; where only the mean does, what it says later on. Means over the {} in a role, then over answers and {unit}.{}{}{} {}",
            captions::plural(segment),
            open_in_words(causes.layers_open(), "the model's"),
            match has_thoughts(causes) {
                true => " The answer is the text behind the thought.",
                false => "",
            },
            controls_in_words(causes),
            bands(causes.unit)
        ),
        axis: "divergence (nats)".to_owned(),
        lines: kinds.into_iter().flat_map(of_kind).collect(),
        ..Intervals::default()
    }
    .figure()
}

/// Effects by the layers at which sessions were blocked.
pub(super) fn windows(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    let name = "causes-by-window";
    let mut series: Vec<(String, Stroke, Series)> = (causes.windowed_roles().into_iter())
        .map(|role| {
            let line = meaning_of(causes, Some(role).filter(|role| *role != OTHERS)).stroke();
            (role.to_owned(), line, causes.by_window(Some(role)))
        })
        .collect();
    series.push(("controls of the evidence".to_owned(), Meaning::Baseline.stroke(), causes.by_window(None)));
    series.retain(|(.., series)| series.n > 0);
    let panel = Panel {
        title: String::new(),
        legend: vec![(None, format!("n = {}", series.iter().map(|(.., s)| s.n).max().unwrap_or(0)))],
        lines: series.iter().map(|(_, line, series)| (*line, series.clone())).collect(),
    };
    let legend = series.iter().map(|(label, line, of)| (*line, format!("{label} (n = {})", of.n))).collect();
    let title = origin.titled("Effects of each part of the history by windows of layers".to_owned());
    let rows = vec![vec![Some(panel)]];
    let (svg, title) = over_layers((name, title), origin, AXIS, rows, legend, causes.unit.many())?;
    let caption = format!(
        "A {segment} is blocked at {width} at a time, window by window; each layer shows the effect of its window. The effect is how far the \
         answer's mean log-probability per token (nats) falls; above 0, the answer needs the {segment} there. The effects of windows need not \
         add up to that of all layers.{} Controls: random text of the evidence's length, without evidence. {}",
        open_in_words(causes.windows_open(), "the windows'"),
        bands(causes.unit),
        segment = study.segment(),
        width = captions::counted(causes.window_width(), "layer"),
    );
    let rows = series.iter().map(|(label, _, series)| (label.as_str(), series));
    let csv = lines_csv(rows);
    Ok(Figure { name: name.to_owned(), title, caption, svg, csv })
}
