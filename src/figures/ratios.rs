//! One curve over another: of the groups' means (STALE, figure 8) and of each example (figure 3).

use super::curves::{bands, figure, groups_left_out, no_runs, titled};
use super::meaning::Meaning;
use super::sheet::{Panel, Sheet};
use super::{Figure, FigureError, Source, captions};
use crate::benchmarks::QUERY;
use crate::lens::{Correctness, Curve, Group, Lens, Scale, Series, Statistic};

/// The ratio of the groups' means, one panel a probe and type.
pub fn of_means(sources: &[Source<'_>], scale: Scale) -> Result<Figure, FigureError> {
    draw(sources, scale, Statistic::RatioOfMeans)
}

/// The mean of the examples' own ratios, one panel a probe and type.
pub fn mean_of(sources: &[Source<'_>], scale: Scale) -> Result<Figure, FigureError> {
    draw(sources, scale, Statistic::MeanOfRatios)
}

/// Title and definition of a quotient of two curves.
fn in_words((over, under): (Curve, Curve), statistic: Statistic, lens: &Lens) -> (String, String) {
    let (many, segment) = (lens.unit().many(), lens.segment);
    let quotient = format!("{} over {}", captions::capital(&over.label()), under.label());
    match (statistic, over.from == under.from) {
        (Statistic::MeanOfRatios, true) => (
            format!("{quotient}: mean of each example's ratio"),
            format!(
                "The mean over {many} of the example's own ratio of the {}'s attention to {} and to {}.",
                over.from, over.to, under.to
            ),
        ),
        (Statistic::MeanOfRatios, false) => (
            format!("{quotient}: mean of each example's ratio"),
            format!(
                "The mean over {many} of the example's own ratio of {} and {}.",
                over.label(),
                under.label()
            ),
        ),
        (_, true) => (
            format!("{quotient}: ratio of the groups' means"),
            format!(
                "The mean over {many} of the {}'s attention to the {} {segment}, over that to the {} one.",
                over.from, over.to, under.to
            ),
        ),
        (_, false) => (
            format!("{quotient}: ratio of the groups' means"),
            format!("The mean over {many} of {}, over that of {}.", over.label(), under.label()),
        ),
    }
}

fn draw(sources: &[Source<'_>], scale: Scale, statistic: Statistic) -> Result<Figure, FigureError> {
    let Some(Source { lens: first, .. }) = sources.first() else { return Err(no_runs("ratio")) };
    let none = Curve::new(QUERY, QUERY);
    let (over, under) = first.ratio.unwrap_or((none, none));
    let (title, definition) = in_words((over, under), statistic, first);
    let (unit, segment) = (first.unit(), first.benchmark.segment);
    let (mut blocks, mut all, mut empty, mut undivided) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for Source { lens, .. } in sources {
        let (mut rows, mut of_run, mut without) = (Vec::new(), Vec::new(), Vec::new());
        for probe in super::panels::split_probes(lens) {
            let mut row = Vec::new();
            for kind in super::panels::panel_kinds(lens) {
                let (mut lines, mut legend) = (Vec::new(), Vec::new());
                for &correctness in lens.splits() {
                    let group = Group { probe: probe.clone(), kind: kind.clone(), correctness };
                    let series = lens.series(&group, statistic, scale);
                    if lens.units(&group) == 0 {
                        without.push(group);
                        continue;
                    }
                    if series.points.iter().all(|point| !point.value.is_some_and(f64::is_finite)) {
                        undivided.push(lens.label(&group));
                        of_run.extend((series.n > 0).then_some(series));
                        continue;
                    }
                    let verdict = match correctness {
                        Correctness::All => "all",
                        split => split.key(),
                    };
                    legend.push((
                        Some(Meaning::of_verdict(correctness).stroke()),
                        format!("{verdict} (n = {})", series.n),
                    ));
                    of_run.push(series.clone());
                    lines.push((Meaning::of_verdict(correctness).stroke(), series));
                }
                let group = Group { probe: probe.clone(), kind, correctness: Correctness::All };
                let title = lens.label(&group);
                row.push((!lines.is_empty()).then_some(Panel { title, legend, lines }));
            }
            rows.push(row);
        }
        blocks.push(rows);
        all.push(of_run);
        empty.push(without);
    }
    let points = all.iter().flatten().flat_map(|series: &Series| &series.points);
    let undefined: usize = points.map(|point| point.undefined).sum();
    let undefined = match (statistic, undefined) {
        (Statistic::MeanOfRatios, 0) | (Statistic::RatioOfMeans, _) => String::new(),
        (_, count) => format!(
            " At {count} points (an example at a layer) the {} pays the {} {} nothing, so there is no ratio: they \
             are left out there and counted in the table.",
            under.from, under.to, segment
        ),
    };
    let nothing = format!(
        "the {} pays the {} {} nothing at any layer, or nothing was measured, so that there is no ratio",
        under.from, under.to, segment
    );
    let undivided = match undivided.join(", ") {
        _ if blocks.iter().flatten().flatten().all(Option::is_none) => {
            format!(" Nothing is drawn: {nothing}.")
        }
        groups if groups.is_empty() => String::new(),
        groups => format!(" Left out: {groups}, where {nothing}."),
    };
    let sheet = Sheet {
        title: super::panels::titled(sources, titled(&title, scale)),
        origin: super::panels::origins(sources),
        y_label: match scale {
            Scale::Mass => format!("ratio of attention mass, {} / {}", over.to, under.to),
            Scale::Density => format!("ratio of attention density, {} / {}", over.to, under.to),
        },
        reference: Some(1.0),
        rows: super::panels::arranged(sources, blocks),
        panel: (300, 150),
        reach: 10.0,
        units: unit.many(),
        ..Sheet::default()
    };
    let caption = format!(
        "{definition} Above the line at 1 the {} attends more to the {} {}. {} They are of the whole statistic. n is the number \
         of {}. Logarithmic value axis.{undefined}{undivided}{}{}{}",
        over.from,
        over.to,
        segment,
        bands(unit),
        unit.many(),
        captions::of_each(sources, captions::split_probes),
        groups_left_out(sources, &empty),
        captions::of_each(sources, captions::without_verdicts),
    );
    figure(format!("{}-{}", statistic.key().replace('_', "-"), scale.key()), caption, &sheet, sources, &all)
}
