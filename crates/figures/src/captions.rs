//! Caption sentences: exclusions, abbreviations, limits.
//!
//! Each starts with a space or is empty.

use std::collections::{BTreeMap, BTreeSet};

pub(super) use palimpsest_data::ground::words::{counted, plural};

use super::Source;
use palimpsest_analysis::lens::{
    Baseline, Correctness, Group, LayerKind, Lens, Scale, Series, Statistic, Study, Target,
};

/// One sentence per run, merged if all are equal, else prefixed by the run's name.
pub(super) fn each(sources: &[Source<'_>], said: Vec<String>) -> String {
    match &said[..] {
        [first, others @ ..] if others.iter().all(|other| other == first) => first.clone(),
        _ => {
            let named = sources.iter().zip(&said).filter(|(_, said)| !said.is_empty());
            named.map(|(source, said)| format!(" {}:{said}", source.origin.name)).collect()
        }
    }
}

pub(super) fn of_each(sources: &[Source<'_>], sentence: impl Fn(&Lens) -> String) -> String {
    each(sources, sources.iter().map(|source| sentence(source.lens)).collect())
}

/// ` Left out: a, b.`; empty without names.
pub(super) fn naming(lead: &str, names: impl IntoIterator<Item = impl ToString>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    if names.is_empty() { String::new() } else { format!(" {lead}: {}.", names.join(", ")) }
}

pub(super) fn left_out(lens: &Lens, groups: &[Group]) -> String {
    naming("Left out, having no members", groups.iter().map(|group| lens.label(group)))
}

/// Windowed and linear layers, if any, and how linear ones are shown.
pub(super) fn about_layer_kinds(lens: &Lens, shown: &str) -> String {
    let mut said = String::new();
    if lens.layers.iter().any(|layer| layer.kind == LayerKind::Windowed) {
        said += &format!(
            " Windowed layers see only the last tokens, and are drawn in panels of their own and averaged apart from the full layers, \
             which see the whole prompt; where the window hides a {}, its density is left out.",
            lens.segment
        );
    }
    if !lens.has_linear_layers() {
        return said;
    }
    said + &format!(
        " At linear layers ({shown}) the share of |weight| stands for the mass: the sizes of the layer's implicit attention \
         weights on the {} over those on all tokens, averaged over value heads instead of heads.",
        lens.segment
    )
}

pub(super) const LINEAR_CURVES: &str = "grey band, hollow markers, a thinner line of their own";
pub(super) const LINEAR_ROWS: &str = "an open mark at the left of the row, the same scale of shades";

fn no_verdicts(judge: Option<&str>, no_result: Option<&str>) -> Option<String> {
    match (judge, no_result) {
        (Some(_), _) => None,
        (None, Some(why)) => Some(format!("the verdicts are no result ({why})")),
        (None, None) => Some("this run has no verdicts yet (command: palimpsest judge)".to_owned()),
    }
}

/// Says why a figure that splits by verdict does not.
pub(super) fn without_verdicts(lens: &Lens) -> String {
    let none = lens.splits() == [Correctness::All];
    let unsplit = none.then(|| "the judge called no answer right or wrong".to_owned());
    let why = no_verdicts(lens.judge.as_deref(), lens.no_result.as_deref()).or(unsplit);
    why.map(|why| format!(" Left out: the groups by correctness, since {why}.")).unwrap_or_default()
}

/// Probes shown, unless all are.
pub(super) fn split_probes(lens: &Lens) -> String {
    let others = lens.probes.iter().filter(|probe| !lens.pooled.contains(probe));
    let others: Vec<&str> = others.map(String::as_str).collect();
    if lens.splits() == [Correctness::All] || others.is_empty() {
        return String::new();
    }
    let are = if others.len() == 1 { "is" } else { "are" };
    let (shown, others) = (lens.pooled_in_words(), others.join(", "));
    format!(" Split by verdict: {shown}; {others} {are} in the tables of palimpsest lens.")
}

/// Definition of the noise baseline, and the number of examples with stand-ins beyond the immediate neighbours.
pub(super) fn noise(lens: &Lens) -> String {
    let (segment, by, far) = (lens.segment, neighbours(lens), far(lens));
    if !lens.curves.iter().any(|curve| lens.has_noise(*curve, Scale::Mass)) {
        return without_baseline(lens);
    }
    format!(
        " Dotted: the noise baseline, the same with the evidence {segment} replaced by {by}.{far}{}",
        without_baseline(lens)
    )
}

pub(super) fn without_baseline(lens: &Lens) -> String {
    let left_out = lens.left_out_in_words();
    if left_out.is_empty() { left_out } else { format!(" {}.", capital(&left_out)) }
}

/// The same for a denominator.
pub(super) fn baseline(lens: &Lens) -> String {
    let (segment, by, far) = (lens.segment, neighbours(lens), far(lens));
    format!(" The noise baseline is the attention to {by} instead of the evidence {segment}.{far}")
}

fn neighbours(lens: &Lens) -> String {
    let segment = lens.segment;
    if let Some(role) = lens.benchmark.lens.stand_in {
        return format!("the {role} that stands in for all evidence, at its density");
    }
    match lens.options().baseline {
        Baseline::Both => format!("its neighbours, the mean over the {segment} before and the one after"),
        Baseline::Adjacent => {
            format!("the {segment} next to it, the nearer of the two, of immediate neighbours the one after")
        }
        Baseline::Pooled(each) => {
            let segments = plural(segment);
            format!(
                "the {each} {segments} before and the {each} after it that are no evidence, pooled: the attention that it would get at their \
             density"
            )
        }
    }
}

fn far(lens: &Lens) -> String {
    let (segment, segments) = (lens.segment, plural(lens.segment));
    let (far, of) = (lens.far_baselines().count(), lens.examples.len());
    // pooled stand-ins are mostly beyond the immediate neighbours
    let pooled = matches!(lens.options().baseline, Baseline::Pooled(_));
    if far == 0 || pooled || lens.benchmark.lens.stand_in.is_some() {
        return String::new();
    }
    let most = lens.far_baselines().filter_map(|example| example.baseline_distance()).max().unwrap_or(1);
    format!(
        " In {far} of {of} examples a neighbour was dropped to fit the context or is evidence itself: the nearest {segment} \
         that was kept in that direction stands in, up to {most} {segments} away (lens/examples.csv has the distances)."
    )
}

pub(super) fn of_study(study: &Study) -> String {
    let Some((_, lens)) = study.measured().next() else { return String::new() };
    let why = no_verdicts(study.judge.as_deref(), study.no_result.as_deref());
    let verdicts =
        why.map(|why| format!(" Nothing is told apart by verdict, since {why}.")).unwrap_or_default();
    format!("{verdicts}{}{}", about_layer_kinds(lens, LINEAR_CURVES), drawn(lens))
}

pub(super) fn drawn(lens: &Lens) -> String {
    let Some(drawn) = lens.drawn else { return String::new() };
    format!(
        " Drawn (seed {}): up to {} examples of each {}, {} and verdict, {} of {}.",
        drawn.by.seed,
        drawn.by.most,
        question(lens),
        lens.benchmark.split,
        drawn.kept,
        drawn.of
    )
}

/// Name of the questions' dimension in prose; files call it `probe`.
pub(super) fn question(lens: &Lens) -> &'static str {
    match lens.benchmark.dimension.name() {
        "probe" => "question",
        other => other,
    }
}

/// Layers where a series is 0, marked at the foot of a logarithmic axis.
pub(super) fn zeros<'a>(series: impl Iterator<Item = &'a Series>) -> String {
    let mut found: BTreeMap<Statistic, BTreeSet<usize>> = BTreeMap::new();
    for one in series {
        let zero = one.points.iter().filter(|point| point.value == Some(0.0)).map(|point| point.layer.index);
        let zero: BTreeSet<usize> = zero.collect();
        if !zero.is_empty() {
            found.entry(one.statistic).or_default().extend(zero);
        }
    }
    if found.is_empty() {
        return String::new();
    }
    let one = |(statistic, layers): (&Statistic, &BTreeSet<usize>)| {
        let name = match statistic {
            Statistic::Mean(curve, Target::Signal) => curve.label(),
            Statistic::Mean(curve, Target::Noise) => format!("noise baseline of {}", curve.label()),
            Statistic::RatioOfMeans | Statistic::MeanOfRatios => "the ratio".to_owned(),
            Statistic::Measure(key) => key.replace('_', " "),
        };
        let plural = if layers.len() == 1 { "" } else { "s" };
        format!("{name} at layer{plural} {}", ranges(layers))
    };
    let all: Vec<String> = found.iter().map(one).collect();
    format!(
        " Exactly 0 in some panel, which a logarithmic axis has no place for, and so a ring at its foot and a gap in the line: {}.",
        all.join("; ")
    )
}

pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

pub(super) fn ranges(numbers: &BTreeSet<usize>) -> String {
    let all = Vec::from_iter(numbers);
    let one = |run: &[&usize]| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}–{last}")),
    };
    all.chunk_by(|a, b| *a + 1 == **b).filter_map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_named_as_ranges() {
        assert_eq!(ranges(&BTreeSet::from([7, 0, 1, 2, 5])), "0–2, 5, 7");
        assert_eq!(ranges(&BTreeSet::new()), "");
    }

    #[test]
    fn words_have_their_plurals() {
        assert_eq!(["session", "trajectory", "day"].map(plural), ["sessions", "trajectories", "days"]);
    }
}
