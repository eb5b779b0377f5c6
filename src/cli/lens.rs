//! `palimpsest lens`: curves and ratios of a run, as CSV.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use crate::heads::Score;
use crate::lens::{
    Baseline, ByHeads, Curve, Group, LayerKind, Lens, Options, Part, PerGroup, Scale, Series, Statistic,
    Study, table,
};
use crate::run::condition::label;

/// Curves and ratios of a run, as CSV.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder.
    pub(super) dir: PathBuf,
    #[command(flatten)]
    pub(super) analysis: Analysis,
}

/// Resamples of a band, unless told otherwise.
const DEFAULT_RESAMPLES: u32 = 2000;

/// How a run is analysed: the same flags for `lens`, `figures` and `report`.
#[derive(Debug, Clone, clap::Args)]
pub struct Analysis {
    /// The answers of this condition, `plain` or for example repeat-2; several with commas [default: all that repeat no other; of
    /// `report` all].
    #[arg(long = "condition", value_name = "NAME", value_delimiter = ',')]
    pub(super) conditions: Vec<String>,
    /// Split by this judge's verdicts, with or without its rubric in brackets, as tables have it [default: the judge and rubric of the
    /// last verdicts].
    #[arg(long, value_name = "NAME")]
    pub(super) judge: Option<String>,
    /// Bootstrap resamples of every confidence band.
    #[arg(long, default_value_t = DEFAULT_RESAMPLES, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub(super) resamples: u32,
    /// Seed of the bootstrap.
    #[arg(long, default_value_t = 0)]
    pub(super) bootstrap_seed: u64,
    /// What stands in for a piece of evidence in its noise baseline: `both`, the mean of the segments before and after it;
    /// `adjacent`, the one next to it, the nearer of the two, of immediate neighbours the one after it; `pooled:N`, the N before
    /// and the N after it as one, for short segments.
    #[arg(long, value_name = "both|adjacent|pooled:N", default_value = "both")]
    pub(super) baseline: Baseline,
    /// Measure up to N examples of each probe, type and verdict, drawn by --seed [default: all].
    #[arg(long, value_name = "N", value_parser = super::positive)]
    pub(super) per_group: Option<usize>,
    /// Seed of the draw of --per-group.
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// Average masses over heads by the scores of this file, which `palimpsest heads` made of the run's model, in the place of the plain
    /// mean. Layers none of whose heads has a score above 0 are left out.
    #[arg(long, value_name = "FILE")]
    pub(super) heads: Option<PathBuf>,
    /// Which score of --heads.
    #[arg(long, value_enum, default_value_t, requires = "heads")]
    pub(super) head_score: HeadScore,
}

/// A score of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum HeadScore {
    /// The share of a needle that the head copies
    #[default]
    Retrieval,
    /// What a question looks at the needle's session more than a null question
    Qr,
}

impl From<HeadScore> for Score {
    fn from(score: HeadScore) -> Self {
        match score {
            HeadScore::Retrieval => Score::Retrieval,
            HeadScore::Qr => Score::Qr,
        }
    }
}

impl Default for Analysis {
    /// What an empty command line means.
    fn default() -> Self {
        Analysis {
            conditions: Vec::new(),
            judge: None,
            resamples: DEFAULT_RESAMPLES,
            bootstrap_seed: 0,
            baseline: Baseline::Both,
            per_group: None,
            seed: 0,
            heads: None,
            head_score: HeadScore::default(),
        }
    }
}

impl Analysis {
    /// The validated form.
    pub fn options(self) -> Options {
        Options {
            judge: self.judge,
            resamples: self.resamples as usize,
            seed: self.bootstrap_seed,
            baseline: self.baseline,
            per_group: self.per_group.map(|most| PerGroup { most, seed: self.seed }),
            heads: self.heads.map(|path| ByHeads { path, score: self.head_score.into() }),
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let conditions = args.analysis.conditions.clone();
    let options = args.analysis.options();
    let study = Study::open(&args.dir, &conditions, &options)?;
    let mut text = String::new();
    super::judging::say_which(&args.dir, study.judge.as_deref(), options.judge.as_deref());
    // A folder of its own, so that masses of two kinds are never in one.
    let folder = match &options.heads {
        None => "lens".to_owned(),
        Some(by) => {
            let _ = writeln!(
                text,
                "masses: averaged over heads by the {} scores of {}",
                by.score.key(),
                by.path.display()
            );
            format!("lens-{}", by.score.key())
        }
    };
    let written = table::write_study(&study, &args.dir.join(folder))?;
    for (condition, lens) in study.measured() {
        if study.selection.several {
            let _ = writeln!(text, "condition {}", label(&condition.name));
        }
        text += &summary(lens);
    }
    for condition in study.conditions.iter().filter(|condition| condition.lens.is_none()) {
        let why = condition.without.as_deref().unwrap_or_default();
        let _ = writeln!(text, "condition {}: not measured ({why})", label(&condition.name));
    }
    text += &measures(&study);
    for path in written {
        let _ = writeln!(text, "wrote {}", path.display());
    }
    // a reader that has seen enough (`| head`) is no fault
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

/// One line a group that has members: attention in percent, averaged over layers, noise baselines in brackets. Each kind of
/// layers has a table.
fn summary(lens: &Lens) -> String {
    let mut text = String::new();
    let mut line = |line: String| text.push_str(&(line + "\n"));
    match &lens.judge {
        Some(judge) => line(format!("verdicts: {judge}")),
        None if lens.no_result.is_some() => {
            let why = lens.no_result.as_deref().unwrap_or_default();
            line(format!("verdicts: no result, so nothing is split by correctness ({why})"));
        }
        None => line("verdicts: none, so nothing is split by correctness".to_owned()),
    }
    line(format!("{}, {} examples measured", lens.layers_in_words(), lens.examples.len()));
    if let Some(drawn) = lens.drawn {
        let (most, seed) = (drawn.by.most, drawn.by.seed);
        line(format!(
            "up to {most} examples of each probe, {} and verdict were drawn (seed {seed}): {} of {}",
            lens.benchmark.split(),
            drawn.kept,
            drawn.of
        ));
    }
    let far = lens.far_baselines().count();
    if far > 0 {
        let segment = lens.benchmark.segment();
        line(format!(
            "noise baselines: in {far} examples a neighbour was dropped or is evidence, and the nearest {segment} kept stands in \
             (examples.csv)"
        ));
    }
    for skipped in &lens.skipped {
        line(format!("not measured: {} {}: {}", skipped.case, skipped.probe, skipped.reason));
    }
    let groups: Vec<Measured> = lens
        .groups()
        .into_iter()
        .filter(|group| lens.units(group) > 0)
        .map(|group| Measured::of(lens, group))
        .collect();
    for (kind, count) in lens.layer_kinds() {
        line(match (kind, lens.has_kinds()) {
            (_, false) => {
                "\nattention in %, mean over layers (noise baseline); ratio of means, mean over layers"
                    .to_owned()
            }
            (LayerKind::Softmax | LayerKind::Windowed, true) => format!(
                "\nattention in %, mean over {} layers ({count}) (noise baseline); ratio of means, mean over the same",
                kind.key()
            ),
            (LayerKind::Linear, true) => format!(
                "\nshare of |weight| in %, mean over linear layers ({count}) (noise baseline); ratio of means, mean over the \
                 same"
            ),
        });
        let wide = width(&lens.curves);
        let head: String = lens.curves.iter().map(|curve| format!("{:>wide$}", curve.label())).collect();
        let ratio = lens.ratio.map(|(over, under)| format!("{:>9}", format!("{}/{}", over.to, under.to)));
        line(format!("{:<30}{:>5}{head}{}", "group", "n", ratio.unwrap_or_default()));
        for group in &groups {
            line(group.row(lens, kind));
        }
    }
    line(String::new());
    text
}

/// How wide the columns of curves are: their numbers, or the longest label with a gap before it.
fn width(curves: &[Curve]) -> usize {
    curves.iter().map(|curve| curve.label().len() + 2).max().unwrap_or(0).max(17)
}

/// The benchmark's measures: a line a measure, group and condition, averaged over layers of one kind; empty where it has none.
fn measures(study: &Study) -> String {
    let mut text = String::new();
    let Some((_, lens)) = study.measured().next() else { return text };
    for (kind, _) in lens.layer_kinds() {
        for grouping in study.groupings() {
            let mut lines = Vec::new();
            for measure in study.measures() {
                let all =
                    measure.scales.first().map(|scale| (scale.key(), study.rows(measure, grouping, *scale)));
                let Some((scale, rows)) = all else { continue };
                for row in rows {
                    for line in &row.lines {
                        let Some(mean) = line.series.mean_over(kind) else { continue };
                        let condition =
                            row.condition.as_deref().filter(|_| study.selection.several).map_or("", label);
                        let mut named = vec![row.row.as_str(), condition, line.word.as_str()];
                        named.retain(|word| !word.is_empty());
                        named.dedup();
                        let named = named.join(" ");
                        lines.push(format!(
                            "{:<34}{scale:<9}{named:<34}{:>5}{mean:>10.3}",
                            measure.label, line.series.n
                        ));
                    }
                }
            }
            if !lines.is_empty() {
                let _ = writeln!(
                    text,
                    "measures by {}, mean over {} layers\n{:<34}{:<9}{:<34}{:>5}{:>10}\n{}\n",
                    grouping.label,
                    kind.key(),
                    "measure",
                    "of",
                    "group",
                    "n",
                    "mean",
                    lines.join("\n")
                );
            }
        }
    }
    text
}

/// A group's statistics over layers.
struct Measured {
    group: Group,
    n: usize,
    /// By curve: the signal and its noise baseline.
    curves: Vec<(Series, Series)>,
    ratio: Option<Series>,
}

impl Measured {
    fn of(lens: &Lens, group: Group) -> Self {
        let of = |statistic| lens.series(&group, statistic, Scale::Mass);
        let both = |curve: &Curve| {
            (of(Statistic::Mean(*curve, Part::Signal)), of(Statistic::Mean(*curve, Part::Noise)))
        };
        let curves = lens.curves.iter().map(both).collect();
        let ratio = lens.ratio.map(|_| of(Statistic::RatioOfMeans));
        Measured { n: lens.units(&group), curves, ratio, group }
    }

    /// The line of the table of one kind of layers.
    fn row(&self, lens: &Lens, kind: LayerKind) -> String {
        let percent = |series: &Series| {
            series.mean_over(kind).map_or("-".to_owned(), |mean| format!("{:.3}", mean * 100.0))
        };
        let wide = width(&lens.curves);
        let cell = |(signal, noise): &(Series, Series)| {
            let cell = format!("{} ({})", percent(signal), percent(noise));
            format!("{cell:>wide$}")
        };
        let cells: String = self.curves.iter().map(cell).collect();
        let ratio = self.ratio.as_ref().map(|ratio| {
            let ratio = ratio.mean_over(kind).map_or("-".to_owned(), |r| format!("{r:.3}"));
            format!(" {ratio:>8}")
        });
        format!("{:<30}{:>5}{cells}{}", lens.label(&self.group), self.n, ratio.unwrap_or_default())
    }
}
