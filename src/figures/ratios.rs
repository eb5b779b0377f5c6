//! One curve over another: of the groups' means (STALE, figure 8) and of each example (figure 3).

use super::curves::{figure, titled};
use super::sheet::{Panel, Sheet};
use super::style::{BLUE, GREY, Marker, Stroke, VERMILLION};
use super::{Figure, FigureError, Origin};
use crate::benchmarks::QUERY;
use crate::lens::{Correctness, Curve, Group, Lens, Scale, Statistic};

/// The ratio of the groups' means, one panel a probe and type.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub fn of_means(lens: &Lens, origin: &Origin, scale: Scale) -> Result<Figure, FigureError> {
    let named = Named::of(lens);
    let what = format!("{} over {}: ratio of the groups' means", named.over, named.under);
    draw(lens, origin, scale, Statistic::RatioOfMeans, "ratio-of-means", &what, &named.means())
}

/// The mean of the examples' own ratios, one panel a probe and type.
///
/// # Errors
/// [`FigureError`], with the figure's name.
pub fn mean_of(lens: &Lens, origin: &Origin, scale: Scale) -> Result<Figure, FigureError> {
    let named = Named::of(lens);
    let what = format!("{} over {}: mean of each example's ratio", named.over, named.under);
    draw(lens, origin, scale, Statistic::MeanOfRatios, "mean-of-ratios", &what, &named.ratios())
}

/// The two curves of the quotient, in words.
struct Named {
    /// `Query to new`.
    over: String,
    /// `query to old`.
    under: String,
    /// Both.
    curves: (Curve, Curve),
    segment: &'static str,
}

impl Named {
    fn of(lens: &Lens) -> Self {
        let none = Curve::new(QUERY, QUERY);
        let curves = lens.ratio.unwrap_or((none, none));
        let over = curves.0.label();
        let mut letters = over.chars();
        let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
        Named {
            over: first + letters.as_str(),
            under: curves.1.label(),
            curves,
            segment: lens.benchmark.segment(),
        }
    }

    /// What the ratio of means is.
    fn means(&self) -> String {
        let (over, under) = self.curves;
        match over.from == under.from {
            true => format!(
                "The mean over cases of the {}'s attention to the {} {}, over that to the {} one.",
                over.from, over.to, self.segment, under.to
            ),
            false => format!("The mean over cases of {}, over that of {}.", over.label(), under.label()),
        }
    }

    /// What the mean of ratios is.
    fn ratios(&self) -> String {
        let (over, under) = self.curves;
        match over.from == under.from {
            true => format!(
                "The mean over cases of the example's own ratio of the {}'s attention to {} and to {}.",
                over.from, over.to, under.to
            ),
            false => format!(
                "The mean over cases of the example's own ratio of {} and {}.",
                over.label(),
                under.label()
            ),
        }
    }
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
    let named = Named::of(lens);
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
            let title = lens.label(&Group { probe: probe.clone(), kind, correctness: Correctness::All });
            row.push((!lines.is_empty()).then_some(Panel { title, legend, lines }));
        }
        rows.push(row);
    }
    let rows = super::sheet::without_empty(rows);
    let undefined: usize = all.iter().flat_map(|series| &series.points).map(|point| point.undefined).sum();
    let undefined = match (statistic, undefined) {
        (Statistic::MeanOfRatios, 0) | (Statistic::RatioOfMeans, _) => String::new(),
        (_, count) => format!(
            " At {count} points (an example at a layer) the {} pays the {} {} nothing, so there is no ratio: they \
             are left out there and counted in the table.",
            named.curves.1.from, named.curves.1.to, named.segment
        ),
    };
    let title = titled(what, scale);
    let sheet = Sheet {
        title: title.clone(),
        origin: origin.line.clone(),
        y_label: match scale {
            Scale::Mass => format!("ratio of attention mass, {} / {}", named.curves.0.to, named.curves.1.to),
            Scale::Density => {
                format!("ratio of attention density, {} / {}", named.curves.0.to, named.curves.1.to)
            }
        },
        percent: false,
        reference: Some(1.0),
        rows,
        legend: Vec::new(),
        panel: (300, 150),
        reach: 10.0,
    };
    let caption = format!(
        "{how} Above the line at 1 the {} attends more to the {} {}. Bands: 95% bootstrap over cases of the whole \
         statistic; none for a single case. n is the number of cases. Logarithmic axis.{undefined}{}{}{}",
        named.curves.0.from,
        named.curves.0.to,
        named.segment,
        super::about_layer_kinds(lens, super::LINEAR_CURVES),
        super::left_out(lens, &empty),
        super::without_verdicts(lens)
    );
    figure(name, title, caption, &sheet, &all)
}
