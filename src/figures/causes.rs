//! Effects of sessions on answers, and how well measures of attention predict them.
//!
//! All numbers are [`Causes`]'. Here: a point a session; the rank correlation of each predictor with the effects, and by layer; how often
//! the evidence is among the first. `cause_effects` draws the effects themselves, `cause_maps` those by windows of layers session by
//! session, and `cause_words` says what held.

use super::cause_captions::{AXIS, colour, controls_in_words, effect_in_words, has_thoughts};
use super::cause_effects::sessions;
use super::curves::{bands, over_layers};
use super::intervals::{Intervals, Line};
use super::meaning::Meaning;
use super::scatter::{Cloud, Scatter};
use super::sheet::Panel;
use super::{Figure, FigureError, Origin, captions, cause_effects, cause_maps, residue};
use crate::ground::csv::CsvTable;
use crate::lens::causes::{CausedAnswer, CausedSession, Causes, OTHERS, Predictor, TOP};
use crate::lens::table::lines_csv;
use crate::lens::{Series, Study};

/// Every figure of the causes of a study.
pub fn of_causes(causes: &Causes, study: &Study, origin: &Origin) -> Result<Vec<Figure>, FigureError> {
    let mut figures = Vec::new();
    if !causes.answers.is_empty() {
        figures.push(points(causes, study, origin)?);
        figures.push(cause_effects::largest(causes, study, origin)?);
        figures.push(ranks(causes, study, origin)?);
        figures.push(ranks_by_layer(causes, study, origin)?);
        if !causes.roles.is_empty() {
            figures.push(found(causes, study, origin)?);
        }
        figures.push(cause_effects::means(causes, study, origin)?);
        figures.push(cause_effects::divergences(causes, study, origin)?);
    }
    let title = origin.titled(format!("What hiding a {} leaves of its effect", study.segment()));
    figures.extend(residue::figure(&causes.residues, (title, origin.line.clone()))?);
    if causes.has_windows() {
        figures.push(cause_effects::windows(causes, study, origin)?);
        if !study.benchmark.lens.anchors.is_empty() {
            figures.push(cause_maps::mean(causes, study, origin)?);
        }
        figures.push(cause_maps::first_case(causes, study, origin)?);
    }
    Ok(figures)
}

fn points(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    let name = "causes-points".to_owned();
    let title = format!("Effect of each {} by the question's attention to it", study.segment());
    let title = origin.titled(title);
    // Others first, so that the evidence lies above them.
    let mut kinds = vec![(colour(causes, None), OTHERS.to_owned())];
    kinds.extend(causes.roles.iter().map(|role| (colour(causes, Some(role)), role.clone())));
    let kind = |role: Option<&String>| {
        role.and_then(|role| causes.roles.iter().position(|known| known == role)).map_or(0, |at| at + 1)
    };
    let cloud = |predictor: Predictor| {
        let of_answer = causes.answers.iter().filter_map(|answer| Some((answer, answer.overall(predictor)?)));
        let points = of_answer.flat_map(|(answer, values)| {
            let sessions = answer.sessions.iter().zip(values);
            sessions.map(|(session, value)| (kind(session.role.as_ref()), *value, session.drop()))
        });
        let points: Vec<(usize, f64, f64)> = points.filter(|(_, x, _)| x.is_finite()).collect();
        let title = format!("{} {}", points.len(), captions::plural(study.segment()));
        Cloud { title, x_label: predictor.label(), points }
    };
    let controls = causes.control_of_evidence();
    let level = controls.and_then(|estimate| Some((estimate.value?, estimate.n)));
    let unit = causes.unit.many();
    let scatter = Scatter {
        title: title.clone(),
        origin: origin.line.clone(),
        y_label: AXIS.to_owned(),
        panels: [Predictor::Mass, Predictor::Density].map(cloud).into(),
        kinds,
        level: level.map(|(level, n)| (level, format!("mean control of the evidence ({n} {unit})"))),
    };
    let svg = scatter.draw(&name)?;
    let caption = format!(
        "A point is a {} of the history of an answer. {} Masses and densities are those of the question's tokens, averaged over \
         heads and over the layers that see the whole prompt; their axes are logarithmic, and values below a hundred-thousandth of the \
         largest lie at the edge. Points beyond all but one in a thousand lie at the edges of the effect's axis.{}",
        study.segment(),
        effect_in_words(causes),
        controls_in_words(causes)
    );
    let csv = points_csv(causes);
    Ok(Figure { name, title, caption, svg, csv })
}

/// A row a session, with a column a predictor.
fn points_csv(causes: &Causes) -> Vec<u8> {
    let rows = causes.answers.iter().flat_map(|answer| {
        answer.sessions.iter().enumerate().map(move |(at, session)| (answer, session, at))
    });
    let thought = |session: &CausedSession| session.effect.thought.map(|thought| thought.log_p_drop + 0.0);
    let table = sessions(CsvTable::of(rows), true, |(answer, session, _)| (answer, session)).column_if(
        has_thoughts(causes),
        "thought_effect",
        |(_, session, _)| thought(session).map(|drop| drop.to_string()).unwrap_or_default(),
    );
    let of_predictor = |table: CsvTable<_>, one: Predictor| {
        table.optional(one.key(), |(answer, _, at): (&CausedAnswer, &CausedSession, usize)| {
            answer.overall(one).map(|values| values[at])
        })
    };
    causes.predictors().into_iter().fold(table, of_predictor).bytes()
}

fn ranks(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    let predictors = causes.predictors();
    let interventions = predictors.iter().any(|one| !one.is_measure());
    let line = |predictor: &Predictor| {
        let group = match (interventions, predictor.is_measure()) {
            (false, _) => "",
            (true, true) => "measures of one reading",
            (true, false) => "other interventions",
        };
        let colour = match predictor {
            Predictor::Ridge => Meaning::Group(1).colour(),
            Predictor::Intervention(_) => Meaning::Group(2).colour(),
            _ => Meaning::Query.colour(),
        };
        let (group, label, estimate) = (group.to_owned(), predictor.label(), causes.rank(*predictor)?);
        Some(Line { group, label, estimate, colour, mark: None })
    };
    let (segment, unit) = (study.segment(), causes.unit.many());
    let fitted = match causes.penalties[..] {
        [] => format!(" There are too few {unit} for a ridge regression."),
        _ => format!(
            " The ridge regression weighs the question's mass by layer and head; it was fitted on half of the {unit} and judged on \
             the other, then the other way round (penalties {}, by cross-validation within the half).",
            causes.penalties.iter().map(|x| x.to_string()).collect::<Vec<_>>().join(" and ")
        ),
    };
    let others = match interventions {
        true => {
            " Other interventions leave sessions out in another way and are no measures of attention: a line each kind, way of leaving \
             out and number of subsets."
        }
        false => "",
    };
    Intervals {
        name: "causes-ranks".to_owned(),
        title: origin
            .titled(format!("How well each measure ranks the {} by their effect", captions::plural(segment))),
        origin: origin.line.clone(),
        caption: format!(
            "Spearman's rank correlation with the effect over the {} of one answer, averaged over answers and then over {unit}; \
             0 is none, 1 the same order. {} Measures are averaged over heads and over the layers that see the whole prompt; attribution is summed over \
             heads, and each layer of a norm is divided by its sum over the {} before layers are averaged (docs/measures.md).{fitted}{others} {}",
            captions::plural(segment),
            effect_in_words(causes),
            captions::plural(segment),
            bands(causes.unit)
        ),
        axis: "rank correlation with the effect".to_owned(),
        ends: (-0.1, 0.5),
        lines: predictors.iter().filter_map(line).collect(),
        ..Intervals::default()
    }
    .figure()
}

fn ranks_by_layer(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    let name = "causes-ranks-by-layer";
    let segment = captions::plural(study.segment());
    let by_layer = Predictor::BY_LAYER.map(|predictor| (predictor, causes.rank_by_layer(predictor)));
    let line = Meaning::Query.stroke();
    let panels: Vec<Option<Panel>> = (by_layer.iter().filter(|(_, series)| series.n > 0))
        .map(|(predictor, series)| {
            let legend = vec![(None, format!("n = {}", series.n))];
            Some(Panel { title: predictor.label(), legend, lines: vec![(line, series.clone())] })
        })
        .collect();
    let title = origin.titled(format!("How well each layer's attention ranks the {segment} by their effect"));
    let rows: Vec<Vec<Option<Panel>>> = panels.chunks(3).map(<[_]>::to_vec).collect();
    let y_label = "rank correlation with the effect";
    let (svg, title) = over_layers((name, title), origin, y_label, rows, Vec::new(), causes.unit.many())?;
    let caption = format!(
        "Spearman's rank correlation between a measure at one layer and the effect over the {segment} of one answer, averaged over \
         answers and then over {}. {} Measures are averaged over heads, attribution is summed. {}",
        causes.unit.many(),
        effect_in_words(causes),
        bands(causes.unit)
    );
    let rows: Vec<(String, &Series)> =
        by_layer.iter().map(|(predictor, series)| (predictor.key(), series)).collect();
    let csv = lines_csv(rows.iter().map(|(key, series)| (key.as_str(), *series)));
    Ok(Figure { name: name.to_owned(), title, caption, svg, csv })
}

fn found(causes: &Causes, study: &Study, origin: &Origin) -> Result<Figure, FigureError> {
    let mut predictors = vec![Predictor::Effect];
    predictors.extend(causes.predictors());
    let lines = causes.roles.iter().flat_map(|role| {
        let (chance, colour) = (causes.chance(role), colour(causes, Some(role)));
        let line = move |predictor: &Predictor| {
            let (group, label) = (role.clone(), predictor.label());
            Some(Line { group, label, estimate: causes.found(*predictor, role)?, colour, mark: chance })
        };
        predictors.iter().filter_map(line).collect::<Vec<_>>()
    });
    let segment = study.segment();
    let segments = captions::plural(segment);
    Intervals {
        name: "causes-found".to_owned(),
        title: origin.titled(format!("How often the evidence is among the first {TOP} {segments}")),
        origin: origin.line.clone(),
        caption: format!(
            "How often the {segment} in a role is among the {TOP} with the largest numbers by each measure, and by its effect itself; \
             where several play it, the share of them. {} with equal numbers share the places left, as if their order were drawn. The \
             upright mark is what drawing {TOP} blindly gives. {} {}",
            captions::capital(&segments),
            effect_in_words(causes),
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
