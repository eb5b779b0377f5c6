//! Figures of effects of sessions on answers, and how well attention predicts them ([`Causes`]): scatter plots, rank correlations overall
//! and by layer, and how often the evidence is among the top sessions.

use super::axis::Range;
use super::cause_effects::{AXIS, colour, controls_in_words, effect_in_words, has_thoughts, sessions};
use super::curves::{bands, over_layers};
use super::intervals::{Intervals, Line};
use super::meaning::Meaning;
use super::plot::{Mark, Plain, Sample};
use super::sheet::{Across, Panel, Sheet};
use super::style::{INK, UNIT};
use super::{Figure, Origin, captions, cause_effects, cause_maps, residue};
use palimpsest_analysis::lens::causes::{CausedAnswer, CausedSession, Causes, OTHERS, Predictor, TOP};
use palimpsest_analysis::lens::table::lines_csv;
use palimpsest_analysis::lens::{Series, Study};
use palimpsest_data::ground::csv::CsvTable;

const CORRELATION: &str = "rank correlation with the effect";

pub fn of_causes(causes: &Causes, study: &Study, origin: &Origin) -> Vec<Figure> {
    let mut figures = Vec::new();
    if !causes.answers.is_empty() {
        figures.push(points(causes, study, origin));
        figures.push(cause_effects::largest(causes, study, origin));
        figures.push(ranks(causes, study, origin));
        figures.push(ranks_by_layer(causes, study, origin));
        if !causes.roles.is_empty() {
            figures.push(found(causes, study, origin));
        }
        figures.push(cause_effects::means(causes, study, origin));
        figures.push(cause_effects::divergences(causes, study, origin));
    }
    let title = origin.titled(format!("What hiding a {} leaves of its effect", study.segment()));
    figures.extend(residue::figure(&causes.residues, title, &origin.line));
    if causes.has_windows() {
        figures.push(cause_effects::windows(causes, study, origin));
        if !study.benchmark.lens.anchors.is_empty() {
            figures.push(cause_maps::mean(causes, study, origin));
        }
        figures.push(cause_maps::first_case(causes, study, origin));
    }
    figures
}

fn points(causes: &Causes, study: &Study, origin: &Origin) -> Figure {
    // Sessions without a role first: evidence is drawn on top.
    let mut kinds = vec![(colour(causes, None), OTHERS.to_owned())];
    kinds.extend(causes.roles.iter().map(|role| (colour(causes, Some(role)), role.clone())));
    let kind = |role: Option<&String>| {
        role.and_then(|role| causes.roles.iter().position(|known| known == role)).map_or(0, |at| at + 1)
    };
    let found = |predictor: Predictor| {
        let of_answer = causes.answers.iter().filter_map(|answer| Some((answer, answer.overall(predictor)?)));
        let points = of_answer.flat_map(|(answer, values)| {
            let sessions = answer.sessions.iter().zip(values);
            sessions.map(|(session, value)| (kind(session.role.as_ref()), *value, session.drop()))
        });
        let mut points: Vec<(usize, f64, f64)> = points.filter(|(_, x, _)| x.is_finite()).collect();
        points.sort_by_key(|(kind, ..)| *kind);
        (predictor, points)
    };
    let controls = causes.control_of_evidence();
    let level = controls.and_then(|estimate| Some((estimate.value?, estimate.n)));
    let look = Plain { ink: INK.into(), width: UNIT, dash: None };
    let panel = |(predictor, points): &(Predictor, Vec<(usize, f64, f64)>)| {
        let positive = points.iter().map(|point| point.1).filter(|x| *x > 0.0);
        let (low, high) = positive.fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
        // At most five decades; smaller values lie at the edge.
        let ends = if low.is_finite() { (low.max(high * 1e-5) / 1.2, high * 1.2) } else { (0.1, 10.0) };
        let place = |x: f64| x.max(ends.0).log10();
        let dots = points.iter().map(|(kind, x, y)| Mark::Dot {
            at: (place(*x), *y),
            radius: UNIT * 5 / 2,
            ink: kinds[*kind].0.mix(0.6),
        });
        let level = level.map(|(level, _)| Mark::Path {
            places: vec![(ends.0.log10(), level), (ends.1.log10(), level)],
            look,
        });
        Some(Panel {
            title: format!("{} {}", points.len(), captions::plural(study.segment())),
            marks: level.into_iter().chain(dots).collect(),
            x: Across::Log(ends.0, ends.1),
            x_label: predictor.label(),
            ..Panel::default()
        })
    };
    let found = [Predictor::Mass, Predictor::Density].map(found);
    let mut effects: Vec<f64> = found.iter().flat_map(|(_, points)| points).map(|point| point.2).collect();
    effects.sort_unstable_by(f64::total_cmp);
    let quantile = |q: f64| palimpsest_data::ground::numbers::quantile(&effects, q);
    let ends =
        if effects.is_empty() { (-1.0, 1.0) } else { (quantile(0.001).min(0.0), quantile(0.999).max(0.0)) };
    let dots = kinds.iter().map(|(colour, text)| (Sample::Dot(*colour), text.clone()));
    let unit = causes.unit.many();
    let of_level =
        level.map(|(_, n)| (Sample::Plain(look), format!("mean control of the evidence ({n} {unit})")));
    let title = format!("Effect of each {} by the question's attention to it", study.segment());
    let sheet = Sheet {
        title: origin.titled(title),
        origin: origin.line.clone(),
        y_label: AXIS.to_owned(),
        reference: Some(0.0),
        rows: vec![found.iter().map(panel).collect()],
        legend: dots.chain(of_level).collect(),
        panel: (330, 250),
        range: Some(Range::between(ends)),
        ..Sheet::default()
    };
    let caption = format!(
        "A point is a {} of the history of an answer. {} Masses and densities are those of the question's tokens, averaged over \
         heads and over the layers that see the whole prompt; their axes are logarithmic, and values below a hundred-thousandth of the \
         largest lie at the edge. Points beyond all but one in a thousand lie at the edges of the effect's axis.{}",
        study.segment(),
        effect_in_words(causes),
        controls_in_words(causes)
    );
    sheet.figure("causes-points", caption, points_csv(causes))
}

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

fn ranks(causes: &Causes, study: &Study, origin: &Origin) -> Figure {
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
    let segments = captions::plural(segment);
    let caption = format!(
        "Spearman's rank correlation with the effect over the {segments} of one answer, averaged over answers and then over {unit}; \
         0 is none, 1 the same order. {} Measures are averaged over heads and over the layers that see the whole prompt; attribution is summed over \
         heads, and each layer of a norm is divided by its sum over the {segments} before layers are averaged (docs/causes.md).{fitted}{others} {}",
        effect_in_words(causes),
        bands(causes.unit)
    );
    let intervals = Intervals {
        axis: CORRELATION.to_owned(),
        ends: (-0.1, 0.5),
        lines: predictors.iter().filter_map(line).collect(),
        ..Intervals::default()
    };
    let title = format!("How well each measure ranks the {segments} by their effect");
    intervals.figure("causes-ranks", (origin.titled(title), &origin.line), caption)
}

fn ranks_by_layer(causes: &Causes, study: &Study, origin: &Origin) -> Figure {
    let segment = captions::plural(study.segment());
    let by_layer = Predictor::BY_LAYER.map(|predictor| (predictor, causes.rank_by_layer(predictor)));
    let line = Meaning::Query.stroke();
    let panels: Vec<Option<Panel>> = (by_layer.iter().filter(|(_, series)| series.n > 0))
        .map(|(predictor, series)| {
            let legend = vec![(None, format!("n = {}", series.n))];
            Some(Panel::of_layers(predictor.label(), legend, vec![(line, series.clone())]))
        })
        .collect();
    let title = origin.titled(format!("How well each layer's attention ranks the {segment} by their effect"));
    let rows: Vec<Vec<Option<Panel>>> = panels.chunks(3).map(<[_]>::to_vec).collect();
    let caption = format!(
        "Spearman's rank correlation between a measure at one layer and the effect over the {segment} of one answer, averaged over \
         answers and then over {}. {} Measures are averaged over heads, attribution is summed. {}",
        causes.unit.many(),
        effect_in_words(causes),
        bands(causes.unit)
    );
    let series: Vec<(String, &Series)> =
        by_layer.iter().map(|(predictor, series)| (predictor.key(), series)).collect();
    let csv = lines_csv(series.iter().map(|(key, series)| (key.as_str(), *series)));
    let sheet = over_layers((title, origin), CORRELATION, rows, causes.unit.many());
    sheet.figure("causes-ranks-by-layer", caption, csv)
}

fn found(causes: &Causes, study: &Study, origin: &Origin) -> Figure {
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
    let caption = format!(
        "How often the {segment} in a role is among the {TOP} with the largest numbers by each measure, and by its effect itself; \
         where several play it, the share of them. {} with equal numbers share the places left, as if their order were drawn. The \
         upright mark is what drawing {TOP} blindly gives. {} {}",
        captions::capital(&segments),
        effect_in_words(causes),
        bands(causes.unit)
    );
    let intervals = Intervals {
        axis: format!("among the first {TOP}"),
        mark: "drawing blindly",
        ends: (0.0, 1.0),
        percent: true,
        lines: lines.collect(),
    };
    let title = format!("How often the evidence is among the first {TOP} {segments}");
    intervals.figure("causes-found", (origin.titled(title), &origin.line), caption)
}
