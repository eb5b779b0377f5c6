//! Figures of effects of sessions on answers, and how well attention predicts them ([`Causes`]): scatter plots, rank correlations overall
//! and by layer, and how often the evidence is among the top sessions.

use super::axis::{padded, spanning};
use super::cause_effects::{AXIS, Told, has_thoughts, sessions};
use super::curves::over_layers;
use super::meaning::Meaning;
use super::rows::{Intervals, Line};
use super::sheet::{Across, Mark, Panel, Plain, Sample, Sheet, ValueAxis};
use super::style::{INK, UNIT};
use super::{Figure, Origin, captions, cause_effects, maps, repairs};
use palimpsest_analysis::finding::Dot;
use palimpsest_analysis::lens::causes::{CausedAnswer, CausedSession, Causes, OTHERS, Predictor, TOP};
use palimpsest_analysis::lens::table::lines_csv;
use palimpsest_analysis::lens::{Series, Study};
use palimpsest_data::ground::csv::CsvTable;
use palimpsest_data::ground::numbers::quantile;
use palimpsest_data::ground::order::unique;

const CORRELATION: &str = "rank correlation with the effect";

pub fn of_causes(causes: &Causes, study: &Study, origin: &Origin) -> Vec<Figure> {
    let told = &Told::of(causes, study, origin);
    let mut figures = Vec::new();
    if !causes.answers.is_empty() {
        figures.extend([points(told), cause_effects::largest(told), ranks(told), ranks_by_layer(told)]);
        figures.extend((!causes.roles.is_empty()).then(|| found(told)));
        figures.extend([cause_effects::means(told), cause_effects::divergences(told)]);
        figures.extend(cause_effects::forced(told));
    }
    let title = format!("What hiding a {} leaves of its effect", told.segment);
    figures.extend(cause_effects::residue(&causes.residues, title, origin));
    figures.extend(repairs::left(&causes.residues, told.segment, origin));
    if causes.has_windows() {
        let aligned = !study.benchmark.lens.anchors.is_empty();
        figures.push(cause_effects::windows(told));
        figures.extend(aligned.then(|| maps::mean_effects(causes, study, origin)));
        figures.push(maps::first_case_effects(causes, study, origin));
    }
    figures
}

fn points(told: &Told<'_>) -> Figure {
    let Told { causes, segment, segments, unit, effect, control, .. } = told;
    // Sessions without a role first: evidence is drawn on top.
    let mut kinds = vec![(told.colour(None), OTHERS.to_owned())];
    kinds.extend(causes.roles.iter().map(|role| (told.colour(Some(role)), role.clone())));
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
        let dot = |(kind, x, y): &(usize, f64, f64)| {
            Mark::Dot((place(*x), *y), UNIT * 5 / 2, kinds[*kind].0.mix(0.6))
        };
        let level =
            level.map(|(level, _)| Mark::Path(vec![(ends.0.log10(), level), (ends.1.log10(), level)], look));
        Panel {
            title: format!("{} {segments}", points.len()),
            marks: level.into_iter().chain(points.iter().map(dot)).collect(),
            x: Across::Log(ends.0, ends.1),
            x_label: predictor.label(),
            ..Panel::default()
        }
    };
    let found = [Predictor::Mass, Predictor::Density].map(found);
    let mut effects: Vec<f64> = found.iter().flat_map(|(_, points)| points).map(|point| point.2).collect();
    effects.sort_unstable_by(f64::total_cmp);
    let ends = match effects.is_empty() {
        true => (-1.0, 1.0),
        false => (quantile(&effects, 0.001).min(0.0), quantile(&effects, 0.999).max(0.0)),
    };
    let dots = kinds.iter().map(|(colour, text)| (Sample::Dot(*colour), text.clone()));
    let of_level =
        level.map(|(_, n)| (Sample::Plain(look), format!("mean control of the evidence ({n} {unit})")));
    let sheet = Sheet {
        y_label: AXIS.to_owned(),
        axes: vec![ValueAxis { reference: Some(0.0), linear: Some(padded(ends)) }],
        rows: vec![found.iter().map(panel).collect()],
        legend: dots.chain(of_level).collect(),
        panel: (330, 250),
        ..Sheet::default()
    };
    let caption = format!(
        "A point is a {segment} of the history of an answer. {effect} Masses and densities are those of the question's tokens, averaged over \
         heads and over the layers that see the whole prompt; their axes are logarithmic, and values below a hundred-thousandth of the \
         largest lie at the edge. Points beyond all but one in a thousand lie at the edges of the effect's axis.{control}"
    );
    let title = format!("Effect of each {segment} by the question's attention to it");
    sheet.headed(told.origin, title).figure("causes-points", caption, points_csv(causes))
}

/// Attention across, effect up.
pub fn attended_used(dots: &[Dot], told: &Told<'_>) -> Figure {
    let Told { segment, effect, .. } = told;
    let roles = unique(dots.iter().map(|dot| dot.role.as_str()));
    let most = dots.iter().map(|dot| dot.attention).fold(0.0, f64::max);
    let ends = spanning((0.0, 0.0), dots.iter().map(|dot| dot.effect));
    let mark = |dot: &Dot| {
        Mark::Dot((100.0 * dot.attention, dot.effect), UNIT * 4, told.colour(Some(&dot.role)).mix(0.6))
    };
    let entry = |role: &&str| {
        let n = dots.iter().filter(|dot| dot.role == *role).count();
        (Sample::Dot(told.colour(Some(role))), format!("{role} (n = {n})"))
    };
    let panel = Panel {
        marks: dots.iter().map(mark).collect(),
        x: Across::Linear(0.0, most.max(1e-9) * 105.0),
        x_label: "attended: % of the question's attention".to_owned(),
        ..Panel::default()
    };
    let sheet = Sheet {
        y_label: "used: effect (nats per token; above 0: needed)".to_owned(),
        axes: vec![ValueAxis { reference: Some(0.0), linear: Some(padded(ends)) }],
        legend: roles.iter().map(entry).collect(),
        rows: vec![vec![panel]],
        panel: (520, 230),
        ..Sheet::default()
    };
    let caption = format!(
        "A dot is a {segment} with a role, in one answer. Attention is the mean over heads and softmax layers. {effect}"
    );
    let table = CsvTable::of(dots.iter())
        .column("case", |dot: &Dot| dot.case.clone())
        .column("probe", |dot| dot.probe.clone())
        .column("condition", |dot| dot.condition.clone())
        .column("span", |dot| dot.span.clone())
        .column("role", |dot| dot.role.clone())
        .column("attention", |dot| dot.attention.to_string())
        .column("effect", |dot| dot.effect.to_string());
    let title = format!("Attended against used, by {segment}");
    sheet.headed(told.origin, title).figure("attended-used", caption, table.bytes())
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

fn ranks(told: &Told<'_>) -> Figure {
    let Told { causes, segments, unit, effect, bands, .. } = told;
    let predictors = causes.predictors();
    let interventions = predictors.iter().any(|one| !one.is_measure());
    let line = |predictor: &Predictor| {
        let group = match (interventions, predictor.is_measure()) {
            (false, _) => "",
            (true, true) => "measures of one forward pass",
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
    let penalties: Vec<String> = causes.penalties.iter().map(f64::to_string).collect();
    let fitted = match penalties.is_empty() {
        true => format!(" There are too few {unit} for a ridge regression."),
        false => format!(
            " The ridge regression weighs the question's mass by layer and head; it was fitted on half of the {unit} and judged on \
             the other, then the other way round (penalties {}, by cross-validation within the half).",
            penalties.join(" and ")
        ),
    };
    let others = match interventions {
        true => {
            " Other interventions leave sessions out in another way and are no measures of attention: a line each kind, way of leaving \
             out and number of subsets."
        }
        false => "",
    };
    let caption = format!(
        "Spearman's rank correlation with the effect over the {segments} of one answer, averaged over answers and then over {unit}; \
         0 is none, 1 the same order. {effect} Measures are averaged over heads and over the layers that see the whole prompt; attribution is summed over \
         heads, and each layer of a norm is divided by its sum over the {segments} before layers are averaged (docs/causes.md).{fitted}{others} {bands}"
    );
    let intervals = Intervals {
        axis: CORRELATION.to_owned(),
        ends: (-0.1, 0.5),
        lines: predictors.iter().filter_map(line).collect(),
        ..Intervals::default()
    };
    let title = format!("How well each measure ranks the {segments} by their effect");
    intervals.figure("causes-ranks", (title, told.origin), caption)
}

fn ranks_by_layer(told: &Told<'_>) -> Figure {
    let Told { causes, segments, unit, effect, bands, .. } = told;
    let by_layer = Predictor::BY_LAYER.map(|predictor| (predictor, causes.rank_by_layer(predictor)));
    let panel = |(predictor, series): &(Predictor, Series)| {
        let legend = vec![(None, format!("n = {}", series.n))];
        Panel::of_layers(predictor.label(), legend, vec![(Meaning::Query.stroke(), series.clone())])
    };
    let panels = by_layer.iter().filter(|(_, series)| series.n > 0).map(panel).collect();
    let caption = format!(
        "Spearman's rank correlation between a measure at one layer and the effect over the {segments} of one answer, averaged over \
         answers and then over {unit}. {effect} Measures are averaged over heads, attribution is summed. {bands}"
    );
    let keys = by_layer.each_ref().map(|(predictor, _)| predictor.key());
    let csv = lines_csv(keys.iter().map(String::as_str).zip(by_layer.iter().map(|(_, series)| series)));
    let title = format!("How well each layer's attention ranks the {segments} by their effect");
    let sheet = over_layers(CORRELATION, panels, unit);
    sheet.headed(told.origin, title).figure("causes-ranks-by-layer", caption, csv)
}

fn found(told: &Told<'_>) -> Figure {
    let Told { causes, segment, segments, effect, bands, .. } = told;
    let mut predictors = vec![Predictor::Effect];
    predictors.extend(causes.predictors());
    let lines = causes.roles.iter().flat_map(|role| {
        let (chance, colour) = (causes.chance(role), told.colour(Some(role)));
        let line = move |predictor: &Predictor| {
            let (group, label) = (role.clone(), predictor.label());
            Some(Line { group, label, estimate: causes.found(*predictor, role)?, colour, mark: chance })
        };
        predictors.iter().filter_map(line).collect::<Vec<_>>()
    });
    let caption = format!(
        "How often the {segment} in a role is among the {TOP} with the largest numbers by each measure, and by its effect itself; \
         where several play it, the share of them. {} with equal numbers share the places left, as if their order were drawn. The \
         upright mark is chance. {effect} {bands}",
        captions::capital(segments)
    );
    let intervals = Intervals {
        axis: format!("among the first {TOP}"),
        mark: "chance",
        ends: (0.0, 1.0),
        percent: true,
        lines: lines.collect(),
    };
    let title = format!("How often the evidence is among the first {TOP} {segments}");
    intervals.figure("causes-found", (title, told.origin), caption)
}
