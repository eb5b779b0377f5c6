//! What answers owe to their sessions, beside what attention says of it.
//!
//! All numbers are [`Causes`]'. The figures: a point a session; the rank correlation of each measure with the effects, and by layer;
//! how often the evidence is among the first; the effects of the evidence by verdict; and by window of layers, also session by session
//! (`cause_maps`).

use plotters::style::RGBColor;

use super::cause_maps;
use super::curves::{bands, stroke};
use super::intervals::{Intervals, Line};
use super::scatter::{Cloud, Scatter};
use super::sheet::{ColumnAxis, Panel, Sheet};
use super::style::{BLUE, GREEN, GREY, Marker, Stroke, VERMILLION};
use super::{Figure, FigureError, Origin, captions};
use crate::lens::band::{Estimate, Point};
use crate::lens::causes::{Causes, OTHERS, Predictor, TOP};
use crate::lens::{Correctness, Series, Study, table};

/// Of sessions without a part.
const PALE: RGBColor = RGBColor(0xa8, 0xa8, 0xa8);

/// What the effect is, for captions.
const EFFECT: &str = "The effect of a session is what the answer's natural-log probability a token loses when everything from the question on \
     is kept from seeing it; above 0, the answer rests on it. Only direct paths are blocked: what other sessions took over from \
     it still arrives.";

/// Every figure of the causes of a study.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub fn of_causes(causes: &Causes, study: &Study, origin: &Origin) -> Result<Vec<Figure>, FigureError> {
    let mut figures = Vec::new();
    if !causes.answers.is_empty() {
        figures.push(points(causes, study, origin)?);
        figures.push(ranks(causes, study, origin)?);
        figures.push(ranks_by_layer(causes, study, origin)?);
        if !causes.roles.is_empty() {
            figures.push(found(causes, study, origin)?);
        }
        figures.push(effects(causes, study, origin)?);
    }
    if causes.has_windows() {
        figures.push(windows(causes, study, origin)?);
        if !study.benchmark.anchors().is_empty() {
            figures.push(cause_maps::mean(causes, study, origin)?);
        }
        figures.push(cause_maps::first_case(causes, study, origin)?);
    }
    Ok(figures)
}

fn colour(role: usize) -> RGBColor {
    [GREEN, VERMILLION, BLUE][role % 3]
}

fn points(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    let name = "causes-points".to_owned();
    let title =
        format!("What an answer owes to a {}, by what the question pays it", study.benchmark.segment());
    // Others first, so that the evidence lies above them.
    let mut kinds = vec![(PALE, OTHERS.to_owned())];
    kinds.extend(causes.roles.iter().enumerate().map(|(at, role)| (colour(at), role.clone())));
    let kind = |role: Option<&String>| {
        role.and_then(|role| causes.roles.iter().position(|known| known == role)).map_or(0, |at| at + 1)
    };
    let cloud = |predictor: Predictor| {
        let of_answer = causes.answers.iter().filter_map(|answer| Some((answer, answer.overall(predictor)?)));
        let points = of_answer.flat_map(|(answer, values)| {
            let sessions = answer.sessions.iter().zip(values);
            sessions.map(|(session, value)| (kind(session.role.as_ref()), *value, session.effect))
        });
        let points: Vec<(usize, f64, f64)> = points.filter(|(_, x, _)| x.is_finite()).collect();
        let title = format!("{} {}", points.len(), captions::plural(study.benchmark.segment()));
        Cloud { title, x_label: predictor.label().to_owned(), points }
    };
    let controls = causes.control(Correctness::All).and_then(|estimate| estimate.value);
    let scatter = Scatter {
        title: title.clone(),
        origin: origin.line.clone(),
        y_label: "effect: log-probability lost a token".to_owned(),
        panels: [Predictor::Mass, Predictor::Density].map(cloud).into(),
        kinds,
        level: controls.map(|level| (level, "mean of controls".to_owned())),
    };
    let svg = scatter.draw(&name)?;
    let caption = format!(
        "A point is a {} of the history of an answer. {EFFECT} Masses and densities are those of the question's tokens, averaged over \
         heads and over the layers that see the whole prompt; their axes are logarithmic, and what is smaller than a hundred-thousandth of the \
         largest lies at the edge. Points beyond all but one in a thousand lie at the edges of the effect's axis. Controls are \
         random stretches of as many tokens as the evidence has, without evidence.",
        study.benchmark.segment()
    );
    let csv = points_csv(causes).map_err(|source| FigureError::Table { figure: name.clone(), source })?;
    Ok(Figure { name, title, caption, svg, csv })
}

/// A row a session.
fn points_csv(causes: &Causes) -> Result<Vec<u8>, csv::Error> {
    let predictors = causes.predictors();
    let mut table = csv::Writer::from_writer(Vec::new());
    let head =
        ["case", "probe", "condition", "correct", "session", "role", "effect", "kl", "changed", "control"];
    table.write_record(head.iter().copied().chain(predictors.iter().map(|one| one.key())))?;
    let text = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    for answer in &causes.answers {
        for (at, session) in answer.sessions.iter().enumerate() {
            let mut row = vec![answer.case.clone(), answer.probe.clone(), answer.condition.clone()];
            row.push(answer.correct.map(|correct| correct.to_string()).unwrap_or_default());
            row.extend([session.span.clone(), session.role.clone().unwrap_or_default()]);
            row.extend([session.effect.to_string(), session.kl.to_string(), session.changed.to_string()]);
            row.push(text(session.control));
            row.extend(predictors.iter().map(|one| text(answer.overall(*one).map(|values| values[at]))));
            table.write_record(row)?;
        }
    }
    table.into_inner().map_err(|e| csv::Error::from(std::io::Error::from(e.error().kind())))
}

fn ranks(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    let line = |predictor: Predictor| {
        let estimate = causes.rank(predictor)?;
        let colour = if predictor == Predictor::Ridge { VERMILLION } else { BLUE };
        let label = predictor.label().to_owned();
        Some(Line { group: String::new(), label, estimate, colour, mark: None })
    };
    let (segment, unit) = (study.benchmark.segment(), causes.unit.many());
    let fitted = match causes.penalties[..] {
        [] => format!(" There are too few {unit} for a ridge regression."),
        _ => format!(
            " The ridge regression weighs the question's mass by layer and head; it was fitted on half of the {unit} and judged on \
             the other, then the other way round (penalties {}, by cross-validation within the half).",
            causes.penalties.iter().map(|x| x.to_string()).collect::<Vec<_>>().join(" and ")
        ),
    };
    Intervals {
        name: "causes-ranks".to_owned(),
        title: format!("How well each measure ranks the {} by their effect", captions::plural(segment)),
        origin: origin.line.clone(),
        caption: format!(
            "Spearman's rank correlation between a measure and the effect over the {} of one answer, averaged over answers and then over {unit}; \
             0 is none, 1 the same order. {EFFECT} Measures are averaged over heads and over the layers that see the whole prompt; attribution is summed over \
             heads. Value norm, output norm and attribution are defined in docs/measures.md.{fitted} {}",
            captions::plural(segment),
            bands(causes.unit)
        ),
        axis: "rank correlation with the effect".to_owned(),
        mark: "",
        ends: (-0.1, 0.5),
        percent: false,
        lines: causes.predictors().into_iter().filter_map(line).collect(),
    }
    .figure()
}

/// Panels of lines over layers on one linear axis.
fn over_layers(
    (name, title): (&str, String),
    origin: &Origin,
    y_label: &str,
    rows: Vec<Vec<Option<Panel>>>,
    legend: Vec<(Stroke, String)>,
    units: &'static str,
) -> Result<(String, String), FigureError> {
    let points = rows.iter().flatten().flatten().flat_map(|panel| &panel.lines).flat_map(|(_, s)| &s.points);
    // The ends of all panels, so that every column gets the same axis.
    let values = points.flat_map(|point| {
        let band = point.band.into_iter().flat_map(|(low, high)| [low, high]);
        point.value.into_iter().chain(band).chain(point.cases.iter().copied()).collect::<Vec<_>>()
    });
    let ends = values.fold((0.0f64, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    let columns = rows.iter().map(Vec::len).max().unwrap_or(1);
    let sheet = Sheet {
        title: title.clone(),
        origin: origin.line.clone(),
        y_label: y_label.to_owned(),
        percent: false,
        reference: None,
        rows,
        legend,
        panel: if columns == 1 { (560, 190) } else { (250, 150) },
        reach: 10.0,
        units,
        axes: vec![ColumnAxis { reference: Some(0.0), linear: Some(ends) }; columns],
    };
    Ok((sheet.draw(name)?, title))
}

fn ranks_by_layer(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    let name = "causes-ranks-by-layer";
    let segment = captions::plural(study.benchmark.segment());
    let by_layer = Predictor::BY_LAYER.map(|predictor| (predictor, causes.rank_by_layer(predictor)));
    let line = Stroke::solid(BLUE, Marker::Circle);
    let panels: Vec<Option<Panel>> = (by_layer.iter().filter(|(_, series)| series.n > 0))
        .map(|(predictor, series)| {
            let legend = vec![(None, format!("n = {}", series.n))];
            Some(Panel { title: predictor.label().to_owned(), legend, lines: vec![(line, series.clone())] })
        })
        .collect();
    let title = format!("How well each layer's attention ranks the {segment} by their effect");
    let rows: Vec<Vec<Option<Panel>>> = panels.chunks(3).map(<[_]>::to_vec).collect();
    let y_label = "rank correlation with the effect";
    let (svg, title) = over_layers((name, title), origin, y_label, rows, Vec::new(), causes.unit.many())?;
    let caption = format!(
        "Spearman's rank correlation between a measure at one layer and the effect over the {segment} of one answer, averaged over \
         answers and then over {}. {EFFECT} Measures are averaged over heads, attribution is summed. {}",
        causes.unit.many(),
        bands(causes.unit)
    );
    let rows = by_layer.iter().map(|(predictor, series)| (predictor.key(), series));
    let csv = table_of(name, rows)?;
    Ok(Figure { name: name.to_owned(), title, caption, svg, csv })
}

/// Rows of `line,layer,n,value,low,high`.
fn table_of<'a>(
    name: &str,
    lines: impl Iterator<Item = (&'a str, &'a Series)>,
) -> Result<Vec<u8>, FigureError> {
    table::lines_csv(lines).map_err(|source| FigureError::Table { figure: name.to_owned(), source })
}

fn found(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    let mut predictors = vec![Predictor::Effect];
    predictors.extend(causes.predictors());
    let lines = causes.roles.iter().enumerate().flat_map(|(at, role)| {
        let chance = causes.chance(role);
        let line = move |predictor: &Predictor| {
            let (group, label) = (role.clone(), predictor.label().to_owned());
            Some(Line {
                group,
                label,
                estimate: causes.found(*predictor, role)?,
                colour: colour(at),
                mark: chance,
            })
        };
        predictors.iter().filter_map(line).collect::<Vec<_>>()
    });
    let segment = study.benchmark.segment();
    Intervals {
        name: "causes-found".to_owned(),
        title: format!("How often the evidence is among the first {TOP} {}", captions::plural(segment)),
        origin: origin.line.clone(),
        caption: format!(
            "How often the {segment} that plays a part is among the {TOP} with the largest numbers by each measure, and by its effect itself; \
             where several play it, the share of them. The upright mark is what drawing {TOP} blindly gives. {EFFECT} {}",
            bands(causes.unit)
        ),
        axis: format!("among the first {TOP}"),
        mark: "drawing blindly",
        ends: (0.0, 1.0),
        percent: true,
        lines: lines.collect(),
    }
    .figure()
}

fn effects(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    let judged = [Correctness::Correct, Correctness::Wrong];
    let split = judged.iter().any(|verdict| causes.effect(None, *verdict).is_some());
    let groups = if split { judged.to_vec() } else { vec![Correctness::All] };
    let mut lines = Vec::new();
    for verdict in groups {
        let group = if split { format!("{} answers", verdict.key()) } else { String::new() };
        let mut add = |label: &str, estimate: Option<Estimate>, colour: RGBColor| {
            let line = |estimate| Line {
                group: group.clone(),
                label: label.to_owned(),
                estimate,
                colour,
                mark: None,
            };
            lines.extend(estimate.map(line));
        };
        for (at, role) in causes.roles.iter().enumerate() {
            add(role, causes.effect(Some(role), verdict), colour(at));
        }
        add(OTHERS, causes.effect(None, verdict), PALE);
        for (at, role) in causes.roles.iter().enumerate() {
            add(&format!("{role}, removed"), causes.total(Some(role), verdict), colour(at));
        }
        add("others, removed", causes.total(None, verdict), PALE);
        add("controls of the evidence", causes.control(verdict), GREY);
    }
    let removed = match causes.total(None, Correctness::All) {
        Some(_) => {
            " Removed: the total effect, the session taken out and all after it read again, so that indirect paths count."
        }
        None => "",
    };
    let told = if split { "" } else { " There are no verdicts to tell answers apart by." };
    Intervals {
        name: "causes-effects".to_owned(),
        title: match split {
            true => "What right and wrong answers owe to each part of the history".to_owned(),
            false => "What answers owe to each part of the history".to_owned(),
        },
        origin: origin.line.clone(),
        caption: format!(
            "{EFFECT} Means over the {} in a part, then over answers and {}. Controls are random stretches of as many tokens that hold \
             no evidence.{removed}{told} {}",
            captions::plural(study.benchmark.segment()),
            causes.unit.many(),
            bands(causes.unit)
        ),
        axis: "effect: log-probability lost a token".to_owned(),
        mark: "",
        ends: (0.0, 0.0),
        percent: false,
        lines,
    }
    .figure()
}

fn windows(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    let name = "causes-by-window";
    let mut series: Vec<(String, Stroke, Series)> = (causes.windowed_roles().into_iter().enumerate())
        .map(|(at, role)| {
            let line = match role {
                OTHERS => Stroke::solid(PALE, Marker::Circle),
                _ => stroke(causes.roles.iter().position(|known| known == role).unwrap_or(at)),
            };
            (role.to_owned(), line, causes.by_window(Some(role)))
        })
        .collect();
    series.push((
        "controls of the evidence".to_owned(),
        Stroke::solid(GREY, Marker::None).noise(),
        causes.by_window(None),
    ));
    series.retain(|(.., series)| series.n > 0);
    let panel = Panel {
        title: String::new(),
        legend: vec![(None, format!("n = {}", series.iter().map(|(.., s)| s.n).max().unwrap_or(0)))],
        lines: series.iter().map(|(_, line, series)| (*line, series.clone())).collect(),
    };
    let legend = series.iter().map(|(label, line, _)| (*line, label.clone())).collect();
    let title = "Through which layers answers take from each part of the history".to_owned();
    let y_label = "log-probability lost a token";
    let rows = vec![vec![Some(panel)]];
    let (svg, title) = over_layers((name, title), origin, y_label, rows, legend, causes.unit.many())?;
    let caption = format!(
        "A {} is blocked at a window of layers at a time; each layer shows the effect of its window. {EFFECT} The effects of windows \
         need not add up to that of all layers. {}",
        study.benchmark.segment(),
        bands(causes.unit)
    );
    let rows = series.iter().map(|(label, _, series)| (label.as_str(), series));
    let csv = table_of(name, rows)?;
    Ok(Figure { name: name.to_owned(), title, caption, svg, csv })
}

/// The layers through which most is taken of the evidence, where windows were blocked.
fn windows_in_words(causes: &Causes, segment: &str) -> Option<String> {
    let most = |role: &String| {
        let series = causes.by_window(Some(role));
        let value = |at: &usize| series.points[*at].value.unwrap_or(f64::NEG_INFINITY);
        let best = (0..series.points.len()).max_by(|a, b| value(a).total_cmp(&value(b)))?;
        // The layers of one window have one value.
        let same = |at: &usize| series.points[*at].value == series.points[best].value;
        let of_window: Vec<usize> = (0..series.points.len()).filter(same).collect();
        let layers = of_window.iter().map(|at| series.points[*at].layer.index).collect();
        let Point { value, band, .. } = &series.points[best];
        let band = band.map(|(low, high)| format!(" [{low:.3}, {high:.3}]")).unwrap_or_default();
        let layers = captions::ranges(&layers);
        Some(format!("without the {role} {segment} at layers {layers} ({:.3}{band})", (*value)?))
    };
    let parts: Vec<String> = causes.roles.iter().filter_map(most).collect();
    let said = || format!("By windows of layers, an answer loses most {}.", parts.join(", "));
    (causes.has_windows() && !parts.is_empty()).then(said)
}

/// What held, in words.
pub fn in_words(causes: &Causes, study: &Study) -> Vec<String> {
    let (segment, many) = (study.benchmark.segment(), captions::plural(study.benchmark.segment()));
    let unit = causes.unit.many();
    let mut said = Vec::new();
    let (units, answers) = (causes.units(), causes.answers.len());
    if answers == 0 {
        said.extend(windows_in_words(causes, segment));
        return said;
    }
    said.push(format!(
        "For {answers} answers to {units} {unit} each {segment} was hidden in turn from the question and the answer, and the model's own answer read again. \
         The effect of a {segment} is what the answer's log-probability a token loses by that."
    ));
    let of = |estimate: &Estimate, write: &dyn Fn(f64) -> String| match (estimate.value, estimate.band) {
        (Some(value), Some((low, high))) => format!("{} [{}, {}]", write(value), write(low), write(high)),
        (Some(value), None) => write(value),
        (None, _) => "none".to_owned(),
    };
    let two = |x: f64| format!("{x:.2}");
    let apart = |estimate: &Estimate| estimate.band.map(|(low, high)| low > 0.0 || high < 0.0);
    let ranks: Vec<(Predictor, Estimate)> =
        causes.predictors().into_iter().filter_map(|one| Some((one, causes.rank(one)?))).collect();
    if let Some((_, mass)) = ranks.iter().find(|(one, _)| *one == Predictor::Mass) {
        let held = match apart(mass) {
            None => format!("with {units} {unit} this says little, and no interval is given below 5"),
            Some(true) if mass.value.is_some_and(|value| value > 0.0) => {
                "the mass says something of the effect, since the interval leaves 0 out".to_owned()
            }
            Some(true) => "the mass ranks them the wrong way round".to_owned(),
            Some(false) => {
                "the interval holds 0: the mass was not shown to say anything of the effect".to_owned()
            }
        };
        said.push(format!(
            "Does the mass tell the cause? The rank correlation of the mass from the question with the effect is {}: {held}.",
            of(mass, &two)
        ));
    }
    let value = |estimate: &Estimate| estimate.value.unwrap_or(f64::NEG_INFINITY);
    if let Some((best, estimate)) = ranks.iter().max_by(|a, b| value(&a.1).total_cmp(&value(&b.1)))
        && ranks.len() > 1
    {
        let others: Vec<String> = (ranks.iter().filter(|(one, _)| one != best))
            .map(|(one, estimate)| format!("{} {}", one.label(), of(estimate, &two)))
            .collect();
        said.push(format!(
            "Of the measures, {} ranks the {many} best, at {}; the others: {}.",
            best.label(),
            of(estimate, &two),
            others.join(", ")
        ));
    }
    let share = |x: f64| format!("{:.0}%", 100.0 * x);
    for role in &causes.roles {
        let (Some(mass), Some(chance)) = (causes.found(Predictor::Mass, role), causes.chance(role)) else {
            continue;
        };
        let by_effect = causes.found(Predictor::Effect, role).map(|estimate| of(&estimate, &share));
        said.push(format!(
            "The {role} {segment} is among the first {TOP} by mass in {} of the answers, by effect in {}, and by drawing blindly in {}.",
            of(&mass, &share),
            by_effect.unwrap_or_else(|| "none".to_owned()),
            share(chance)
        ));
    }
    let three = |x: f64| format!("{x:.3}");
    let mut verdicts = Vec::new();
    for role in &causes.roles {
        let by = |verdict| causes.effect(Some(role), verdict).map(|estimate| of(&estimate, &three));
        if let (Some(right), Some(wrong)) = (by(Correctness::Correct), by(Correctness::Wrong)) {
            verdicts.push(format!("{role} {right} where they are right and {wrong} where they are wrong"));
        }
    }
    if verdicts.is_empty() {
        let of_role = |role: &String| {
            causes
                .effect(Some(role), Correctness::All)
                .map(|estimate| format!("the {role} {segment} {}", of(&estimate, &three)))
        };
        let mut parts: Vec<String> = causes.roles.iter().filter_map(of_role).collect();
        let others = causes
            .effect(None, Correctness::All)
            .map(|x| format!("a {segment} without a part {}", of(&x, &three)));
        let controls = causes.control(Correctness::All);
        let controls =
            controls.map(|x| format!("as much text elsewhere as the evidence has {}", of(&x, &three)));
        parts.extend(others.into_iter().chain(controls));
        said.push(format!("On average an answer owes to {}.", parts.join(", to ")));
    } else {
        said.push(format!("Answers owe to the {}.", verdicts.join("; to the ")));
    }
    let totals: Vec<String> = (causes.roles.iter())
        .filter_map(|role| {
            Some(format!("the {role} {segment} {}", of(&causes.total(Some(role), Correctness::All)?, &three)))
        })
        .collect();
    if !totals.is_empty() {
        let alike = causes.rank(Predictor::Total).map(|estimate| of(&estimate, &two)).unwrap_or_default();
        said.push(format!(
            "With a {segment} removed and all after it read again, an answer loses of {}: the total effect, in which indirect paths count. Over \
             the {many} its rank correlation with the direct effect is {alike}.",
            totals.join(", of ")
        ));
    }
    said.extend(windows_in_words(causes, segment));
    said.push(format!(
        "Only direct paths were blocked: what other {many} took over from a hidden one still arrives, so that an effect near 0 does not show that \
         the model did without it."
    ));
    said
}
