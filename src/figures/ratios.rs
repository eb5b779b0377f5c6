//! The query's attention to new over old: of the groups' means (STALE, figure 8) and of each example (figure 3).

use super::curves::{figure, titled};
use super::sheet::{Panel, Sheet};
use super::style::{BLUE, GREY, Marker, Stroke, VERMILLION};
use super::{Figure, FigureError, Origin};
use crate::lens::{Correctness, Group, Lens, Scale, Statistic};

/// The ratio of the groups' means, one panel a probe and type.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub fn of_means(lens: &Lens, origin: &Origin, scale: Scale) -> Result<Figure, FigureError> {
    let what = "Query to new over query to old: ratio of the groups' means";
    let how = "The mean over cases of the query's attention to the new session, over that to the old one.";
    draw(lens, origin, scale, Statistic::RatioOfMeans, "ratio-of-means", what, how)
}

/// The mean of the examples' own ratios, one panel a probe and type.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub fn mean_of(lens: &Lens, origin: &Origin, scale: Scale) -> Result<Figure, FigureError> {
    let what = "Query to new over query to old: mean of each example's ratio";
    let how = "The mean over cases of the example's own ratio of the query's attention to new and to old.";
    draw(lens, origin, scale, Statistic::MeanOfRatios, "mean-of-ratios", what, how)
}

fn stroke(correctness: Correctness) -> Stroke {
    match correctness {
        Correctness::Correct => Stroke::solid(BLUE, Marker::Circle),
        Correctness::Wrong => Stroke::solid(VERMILLION, Marker::Square).dashed(),
        Correctness::All => Stroke::solid(GREY, Marker::Triangle),
    }
}

fn draw(
    lens: &Lens,
    origin: &Origin,
    scale: Scale,
    statistic: Statistic,
    name: &str,
    what: &str,
    how: &str,
) -> Result<Figure, FigureError> {
    let name = format!("{name}-{}", scale.key());
    let (mut rows, mut all, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    for probe in super::panel_probes(lens) {
        let mut row = Vec::new();
        for kind in super::panel_kinds(lens) {
            let (mut lines, mut legend) = (Vec::new(), Vec::new());
            for &correctness in lens.splits() {
                let group = Group { probe: probe.clone(), kind: kind.clone(), correctness };
                let series = lens.series(&group, statistic, scale);
                if series.n == 0 {
                    empty.push(group);
                    continue;
                }
                let verdict = match correctness {
                    Correctness::All => "all",
                    split => split.key(),
                };
                legend.push((Some(stroke(correctness)), format!("{verdict} (n = {})", series.n)));
                all.push(series.clone());
                lines.push((stroke(correctness), series));
            }
            let title = Group { probe: probe.clone(), kind, correctness: Correctness::All }.label();
            row.push((!lines.is_empty()).then_some(Panel { title, legend, lines }));
        }
        rows.push(row);
    }
    let rows = super::sheet::without_empty(rows);
    let undefined: usize = all.iter().flat_map(|series| &series.points).map(|point| point.undefined).sum();
    let undefined = match (statistic, undefined) {
        (Statistic::MeanOfRatios, 0) | (Statistic::RatioOfMeans, _) => String::new(),
        (_, count) => format!(
            " At {count} points (an example at a layer) the query pays the old session nothing, so there is no ratio: they \
             are left out there and counted in the table."
        ),
    };
    let title = titled(what, scale);
    let sheet = Sheet {
        title: title.clone(),
        origin: origin.line.clone(),
        y_label: match scale {
            Scale::Mass => "ratio of attention mass, new / old".to_owned(),
            Scale::Density => "ratio of attention density, new / old".to_owned(),
        },
        percent: false,
        reference: Some(1.0),
        rows,
        legend: Vec::new(),
        panel: (300, 150),
        reach: 10.0,
    };
    let caption = format!(
        "{how} Above the line at 1 the query attends more to the new session. Bands: 95% bootstrap over cases of the whole \
         statistic; none for a single case. n is the number of cases. Logarithmic axis.{undefined}{}{}{}",
        super::about_layer_kinds(lens, super::LINEAR_CURVES),
        super::left_out(&empty),
        super::without_verdicts(lens)
    );
    figure(name, title, caption, &sheet, &all)
}
