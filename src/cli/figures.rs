//! `palimpsest figures`: the figures of a run, as SVG, PDF and PNG.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::lens::Analysis;
use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::reading::ReadError;
use crate::case::labels;
use crate::case::lengths::SplitLengths;
use crate::dose::Doses;
use crate::figures::look::{Look, Size};
use crate::figures::{self, RunFigures, Style};
use crate::ground::words::counted;
use crate::ground_truth::GroundTruth;
use crate::ground_truth::table::Row;
use crate::progress::note;

/// Draw the figures of a run as SVG, PDF and PNG; of several runs side by side.
///
/// If a run has several conditions, each gets its own figures, named CONDITION-FIGURE, and figures with all conditions side by side.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run folders. Several are drawn side by side: curves and ratios over layers, on the same axes. Runs of several benchmarks by one
    /// model make one figure: attention to the evidence over attention to its neighbours.
    #[arg(required_unless_present = "style_example", value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Folder for the figures [default: DIR/figures, or figures-SCORE with --heads]; required with several runs.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Also compare a run's conditions: the same questions under both on one axis, and their difference with its interval. The plain
    /// condition, or else the first, is compared with every other.
    #[arg(long)]
    difference: bool,
    /// Draw these measures of the benchmark, by key, such as `content_effect` [default: the first ones, as many as a page holds].
    /// Tables have all.
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    measures: Vec<String>,
    /// Print a complete style file, and draw nothing.
    #[arg(long)]
    style_example: bool,
    #[command(flatten)]
    look: FigureStyle,
    #[command(flatten)]
    analysis: Analysis,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { dirs, out, difference, measures, style_example, look, analysis } = args;
    if style_example {
        return super::say(format_args!("{}", Style::EXAMPLE.trim_end()));
    }
    let _look = Look { measures, ..look.look()? }.enter();
    if out.is_none() && dirs.len() > 1 {
        bail!("{} runs were given and no folder for their figures; add --out FOLDER", dirs.len());
    }
    let options = analysis.options();
    let wanted = RunFigures { options: &options, conditions: &analysis.conditions, difference };
    let (figures, remarks) = figures::draw_runs(&dirs, wanted)?;
    for remark in remarks {
        super::say(remark)?;
    }
    let out = match (out, &analysis.heads) {
        (Some(out), _) => out,
        // A separate folder, so that different kinds of masses never mix.
        (None, Some(_)) => super::own_folder(&dirs[0], &format!("figures-{}", analysis.head_score.key()))?,
        (None, None) => super::own_folder(&dirs[0], "figures")?,
    };
    figures::write(&figures, &out)?;
    for figure in &figures {
        super::say(format_args!("{}: {}", figure.name, figure.title))?;
    }
    super::say(format_args!(
        "wrote {} figures (svg, pdf, png, csv) and captions.json to {}",
        figures.len(),
        out.display()
    ))
}

/// The figure of `data stats`.
pub(super) fn distribution(dataset: &Dataset, label: &str, folder: &Path) -> anyhow::Result<()> {
    let sound = dataset.cases()?.filter(|case| !matches!(case, Err(ReadError::Row(_))));
    let counts = labels::count(sound, label, dataset.benchmark().split)?;
    let origin = format!("{} · {}", dataset.name(), counted(counts.cases, "case"));
    let figure = figures::distribution(&counts, &origin);
    figures::write(std::slice::from_ref(&figure), folder)?;
    note(format_args!("wrote {}", folder.join(figure.name).with_extension("svg").display()));
    Ok(())
}

/// The figure of `data stats --placement`.
pub(super) fn placement(files: &[(String, Vec<SplitLengths>)], folder: &Path) -> anyhow::Result<()> {
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let figure = figures::placement(files, &names.join(" · "));
    figures::write(std::slice::from_ref(&figure), folder)?;
    note(format_args!("wrote {}", folder.join(figure.name).with_extension("svg").display()));
    Ok(())
}

/// The figures of `dose --out`.
pub(super) fn doses(all: &[Doses], folder: &Path) -> anyhow::Result<()> {
    let drawn = match all {
        [one] => figures::draw_doses(one),
        several => figures::draw_dose_runs(several),
    };
    figures::write(&drawn, folder)?;
    Ok(())
}

/// The figure of `ground-truth --out`.
pub(super) fn ground_truth(truth: &GroundTruth, rows: &[Row], folder: &Path) -> anyhow::Result<()> {
    figures::write(figures::draw_ground_truth(truth, rows).as_slice(), folder)?;
    Ok(())
}

/// Options of the look of figures.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Look of the figures")]
pub struct FigureStyle {
    /// Draw no title and no line of origin; the caption in captions.json has both.
    #[arg(long)]
    no_title: bool,
    /// Width of each picture, such as 84mm (a column), 17cm, 3.3in, 240pt or 600px; the layout follows the width, nothing is scaled
    /// [default: the width of the content].
    #[arg(long, value_name = "LENGTH")]
    width: Option<String>,
    /// Text size with --width, such as 8pt or 2.8mm; numbers at ticks are five sixths of it.
    #[arg(long, value_name = "LENGTH", requires = "width", default_value = DEFAULT_TEXT)]
    text_size: Option<String>,
    /// A style file: colours and dashes by meaning, texts, a font (docs/figures.md).
    #[arg(long, value_name = "FILE")]
    style: Option<PathBuf>,
}

/// Default text size if a width is given.
const DEFAULT_TEXT: &str = "8pt";
/// Minimum layout width for a panel with its axis, in pixels at a text height of 12.
const LEAST_ROOM: i32 = 200;

impl FigureStyle {
    fn look(&self) -> anyhow::Result<Look> {
        let style = self.style.as_deref().map(Style::read).transpose()?.unwrap_or_default();
        let size = self.width.as_deref().map(|width| {
            let text = self.text_size.as_deref().unwrap_or(DEFAULT_TEXT);
            let size = Size { width: pixels("--width", width)?, text: pixels("--text-size", text)? };
            if !(4.0..=96.0).contains(&size.text) {
                bail!("--text-size {text} is not legible; give a size from 3pt to 72pt");
            }
            if size.room() < LEAST_ROOM {
                bail!(
                    "--width {width} has no room for a panel with words of {text}; give at least {:.0}mm, or smaller words with --text-size",
                    (f64::from(LEAST_ROOM + 1) * size.scale() / 96.0 * 25.4).ceil()
                );
            }
            Ok(size)
        });
        Ok(Look { titles: !self.no_title, size: size.transpose()?, style, ..Look::default() })
    }
}

fn pixels(option: &str, text: &str) -> anyhow::Result<f64> {
    const UNITS: [(&str, f64); 5] =
        [("mm", 96.0 / 25.4), ("cm", 96.0 / 2.54), ("in", 96.0), ("pt", 96.0 / 72.0), ("px", 1.0)];
    let split = |(unit, factor): &(&str, f64)| Some((text.strip_suffix(unit)?.trim_end(), *factor));
    let (number, factor) = UNITS.iter().find_map(split).with_context(|| {
        format!("{option} {text} has no unit; write a number with mm, cm, in, pt or px, such as 84mm")
    })?;
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 && number * factor <= 10_000.0 => Ok(number * factor),
        Ok(_) => bail!("{option} {text} is no length of a page; give one above 0 and below 2600mm"),
        Err(_) => {
            bail!("{option} {text} is no length; write a number with mm, cm, in, pt or px, such as 84mm")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(width: &str, text: Option<&str>) -> Result<Option<Size>, String> {
        let style = FigureStyle {
            width: Some(width.to_owned()),
            text_size: text.map(str::to_owned),
            ..FigureStyle::default()
        };
        style.look().map(|look| look.size).map_err(|error| error.to_string())
    }

    #[test]
    fn lengths_have_their_units() {
        for (text, wanted) in
            [("25.4mm", 96.0), ("2.54 cm", 96.0), ("1in", 96.0), ("72pt", 96.0), ("96px", 96.0)]
        {
            assert!((pixels("--width", text).unwrap() - wanted).abs() < 1e-9, "{text}");
        }
        let column = with("84mm", None).unwrap().unwrap();
        assert!((column.text - 8.0 / 0.75).abs() < 1e-9 && column.room() == 357);
    }

    #[test]
    fn what_is_no_width_is_refused_with_the_value_and_the_remedy() {
        for (width, text, words) in [
            ("84", None, ["--width 84 has no unit", "84mm"]),
            ("wide mm", None, ["--width wide mm is no length", "84mm"]),
            ("-3mm", None, ["--width -3mm", "above 0"]),
            ("20mm", None, ["--width 20mm has no room", "at least 48mm"]),
            ("84mm", Some("1pt"), ["--text-size 1pt", "3pt to 72pt"]),
        ] {
            let said = with(width, text).unwrap_err();
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
        assert_eq!(crate::figures::look::current().size, None, "nothing is left behind");
    }
}
