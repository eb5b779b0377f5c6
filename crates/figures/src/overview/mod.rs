//! The overview of a run as an HTML fragment: the finding, a chart, accuracies, sections, figures, and how it was run.
//!
//! The page of `palimpsest view` embeds it, and owns its style: the fragment has no inline style and no script. Texts of a run are escaped.

use minijinja::value::Serde;
use minijinja::{Environment, Value, context};
use serde::Serialize;

use super::{Figure, Origin, Section, captions, curves};
use palimpsest_analysis::dose::words::paragraphs;
use palimpsest_analysis::dose::{DoseError, DoseOptions, Doses};
use palimpsest_analysis::evict::{Evictions, EvictionsError};
use palimpsest_analysis::finding::Finding;
use palimpsest_analysis::lens::causes::Causes;
use palimpsest_analysis::lens::{Condition, LensError, Study};
use palimpsest_analysis::losses::words::in_words;
use palimpsest_analysis::losses::{LossError, Losses};
use palimpsest_analysis::records::join;
use palimpsest_analysis::results::metrics::AccuracyTable;
use palimpsest_analysis::results::outcomes::Outcomes;
use palimpsest_analysis::why::labels::Labels;
use palimpsest_core::text::known_special_tokens;
use palimpsest_data::ground::numbers::percent;
use palimpsest_data::ground::order::{sorted_unique, unique};
use palimpsest_run::runs::condition::label;
use palimpsest_run::runs::judge_name::JudgeChoice;

mod facts;

const TEMPLATE: &str = include_str!("overview.html.j2");

#[derive(Debug, thiserror::Error)]
pub enum OverviewError {
    #[error(transparent)]
    Lens(#[from] LensError),
    #[error(transparent)]
    Losses(#[from] LossError),
    #[error(transparent)]
    Doses(#[from] DoseError),
    #[error(transparent)]
    Evictions(#[from] EvictionsError),
    #[error("overview: {0}")]
    Template(#[from] minijinja::Error),
}

#[derive(Serialize)]
struct Accuracy {
    /// Empty if there is only one condition.
    condition: String,
    table: AccuracyTable,
    /// Notes on rows outside the cells.
    apart: Vec<String>,
}

/// Renders the fragment. `sections`: figures by heading. Verdicts of a judge too small to judge are withheld.
pub fn html(study: &Study, sections: &[Section], causes: Option<&Causes>) -> Result<String, OverviewError> {
    let mut environment = Environment::new();
    environment.add_filter("percent", percent);
    environment.add_filter("plural", |word: &str| captions::plural(word));
    // The extension enables HTML escaping.
    environment.add_template("overview.html", TEMPLATE)?;
    let finding = Finding::of(study, causes);
    let run = &study.conditions[0].run;
    let answers = || study.conditions.iter().flat_map(|one| one.run.answers());
    let failed = answers().filter(|row| row.error.is_some()).count();
    let expected = run.cases().iter().map(|case| case.probes.len()).sum::<usize>() * study.conditions.len();
    let judged = || study.conditions.iter().filter(|_| study.no_result.is_none());
    let accuracies: Vec<Accuracy> = judged().filter_map(|one| accuracy(one, study)).collect();
    let warnings = judged().filter_map(|one| {
        let warning = one.verdicts()?.warning()?;
        Some(if study.selection.several { format!("{}: {warning}", label(&one.name)) } else { warning })
    });
    let several = || study.conditions.iter().filter(|_| study.selection.several);
    let judge = study.conditions.iter().find_map(|one| one.judge.clone());
    let scatter = causes.map(|causes| super::draw_attended_used(causes, study, &finding.dots));
    let page = context! {
        title => Origin::of(run, None).line,
        finding => finding.sentences,
        chart => draw_overall(study).iter().map(picture).collect::<Vec<_>>(),
        scatter => scatter.iter().flatten().map(picture).next(),
        answered => answers().count() - failed,
        cut => answers().filter(|row| row.reached_limit()).count(),
        failed => failed,
        expected => expected,
        judge => judge.as_deref(),
        judge_note => judge.as_deref().filter(|_| study.no_result.is_none()).and_then(judge_note),
        accuracies => Serde(accuracies),
        no_result => study.no_result.as_deref(),
        warnings => warnings.collect::<Vec<_>>(),
        conditions => several().map(|one| under(one, study)).collect::<Vec<_>>(),
        attention => study.measured().next().is_some(),
        segment => run.benchmark().segment,
        told => parts(&told(study, causes)?),
        sections => parts(sections),
        spelling => special_tokens(study)?,
        special_tokens_are_text => run.header_text("/identity/special_tokens").is_some_and(|how| how == "text"),
        facts => facts::of_run(study, judge.as_deref())?,
        costs => facts::costs(study),
        header => format!("{:#}", run.header()),
    };
    Ok(environment.get_template("overview.html")?.render(page)?)
}

/// Without sections that have nothing to show.
fn parts(sections: &[Section]) -> Vec<Value> {
    let part = |section: &Section| {
        context! {
            id => section.id,
            heading => &section.heading,
            about => section.about.as_deref().map(captions::capital),
            words => &section.words,
            pictures => section.figures.iter().map(picture).collect::<Vec<_>>(),
        }
    };
    sections.iter().filter(|one| !one.figures.is_empty() || !one.words.is_empty()).map(part).collect()
}

fn picture(figure: &Figure) -> Value {
    context! {
        name => &figure.name,
        title => &figure.title,
        caption => &figure.caption,
        // Inline SVG needs no namespace.
        svg => figure.svg.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1),
        // Open; density versions are folded.
        main => !figure.name.ends_with("-density"),
    }
}

/// Curves over all cases under the plain condition, or else the first measured one: on a linear and on a logarithmic axis.
fn draw_overall(study: &Study) -> Vec<Figure> {
    let plain = study.measured().find(|(condition, _)| condition.name.is_empty());
    let Some((condition, lens)) = plain.or_else(|| study.measured().next()) else { return Vec::new() };
    super::of_conditions(study, &[&condition.name], |origin| {
        let source = super::Source { lens, origin };
        [true, false].into_iter().filter_map(|linear| curves::overall(source, linear)).collect()
    })
}

fn accuracy(condition: &Condition, study: &Study) -> Option<Accuracy> {
    let (run, verdicts) = (&condition.run, condition.verdicts()?);
    let records = join(run.cases(), run.condition(), run.answers(), verdicts.rows());
    let outcomes = Outcomes::of(run.benchmark(), &records, &verdicts.name.judge);
    let name = if study.selection.several { label(&condition.name) } else { "" };
    Some(Accuracy {
        condition: name.to_owned(),
        table: AccuracyTable::of(&outcomes, &verdicts.name.label),
        apart: outcomes.apart_in_words(),
    })
}

fn under(condition: &Condition, study: &Study) -> Value {
    let answers = condition.run.answers();
    let failed = answers.iter().filter(|row| row.error.is_some()).count();
    let expected = condition.run.cases().iter().map(|case| case.probes.len()).sum::<usize>();
    let mut came = format!("{} of {expected} answered", answers.len() - failed);
    if failed > 0 {
        came += &format!(", {failed} failed");
    }
    if let Some(why) = &condition.without {
        came += &format!("; no figures of it: {why}");
    }
    let about = captions::capital(&study.condition_in_words(&condition.name));
    context! { name => label(&condition.name), about => about, came => came }
}

/// Sections in words. Memory systems, doses, evictions and labels belong to the whole run.
fn told(study: &Study, causes: Option<&Causes>) -> Result<Vec<Section>, OverviewError> {
    let section = |id, heading: &str, words, figures| {
        let heading = Some(heading.to_owned());
        Section { id, heading, about: None, words, figures }
    };
    let mut told = Vec::new();
    if study.selection.prefix.is_empty() {
        if let Some(losses) = losses(study)? {
            let line = Origin::of(&study.conditions[0].run, None).line;
            let figure = super::waterfall::memory_waterfall(&losses, &line);
            let words = in_words(std::slice::from_ref(&losses));
            told.push(section("lost", "Where it was lost", words, vec![figure]));
        }
        if let Some(doses) = doses(study)? {
            let residues = palimpsest_analysis::lens::causes::residue::in_words(&doses.residues, "session");
            let words = [paragraphs(&doses), residues].concat();
            told.push(section("doses", "What moves the update effect", words, super::draw_doses(&doses)));
        }
        let choice = JudgeChoice::of(study.judge.as_deref());
        if let Some(evictions) = Evictions::open(&study.folder, study.benchmark, choice)? {
            let figures = super::evict::of_evictions(&evictions);
            told.push(section("evictions", "What evicting keys changes", Vec::new(), figures));
        }
        // Labels by a judge that cannot judge are withheld, with a sentence that says so.
        if let Some(labels) = Labels::open(&study.folder).map_err(LensError::from)? {
            let mut words = labels.in_words();
            let judges = unique(labels.answers.iter().map(|(_, row)| &*row.judge));
            if let Some(shown) = &study.judge
                && judges.iter().any(|judge| judge != shown)
            {
                let judges = judges.join(", ");
                words.insert(
                    0,
                    format!("The labels explain the verdicts of {judges}; the accuracies are by {shown}."),
                );
            }
            told.push(section("why", "Why answers are as they are", words, Vec::new()));
        }
    }
    if let Some(causes) = causes {
        let words = super::cause_words::in_words(causes, study);
        told.push(section("causes", "What made it answer", words, super::draw_causes(causes, study)));
    }
    Ok(told)
}

fn losses(study: &Study) -> Result<Option<Losses>, LossError> {
    let conditions = study.folder.header.identity.conditions_or_plain();
    if conditions.iter().all(|condition| condition.memory.is_none()) {
        return Ok(None);
    }
    Losses::open(&study.folder, study.benchmark, JudgeChoice::of(study.judge.as_deref()))
}

/// `None` if no answer has log-probabilities of doses.
fn doses(study: &Study) -> Result<Option<Doses>, DoseError> {
    match Doses::of_run(study.folder.clone(), &DoseOptions::default()) {
        Err(DoseError::OtherBenchmark { .. } | DoseError::NoContrast { .. }) => Ok(None),
        doses => doses.map(Some),
    }
}

/// Cases whose history or queries spell special tokens, with these: `case-1 (<|im_end|>)`.
fn special_tokens(study: &Study) -> Result<Vec<String>, LensError> {
    let run = &study.conditions[0].run;
    let mut found = Vec::new();
    for case in run.cases() {
        let shown = run.shown(&case.case)?;
        let turns = shown.iter().flat_map(|shown| &shown.segments).flat_map(|segment| &segment.turns);
        let queries = case.probes.iter().map(|probe| probe.query.as_str());
        let texts = turns.map(|turn| turn.content.as_str()).chain(queries);
        let tokens = sorted_unique(texts.flat_map(known_special_tokens));
        if !tokens.is_empty() {
            found.push(format!("{} ({})", case.case, tokens.join(" ")));
        }
    }
    Ok(found)
}

/// Warns that a local judge may be unreliable.
fn judge_note(judge: &str) -> Option<String> {
    let name = judge.strip_prefix("local:")?;
    Some(format!(
        "The judge was local:{name}, a model that ran locally. How well it judges is not known: check a sample of its verdicts \
         by hand before you rest anything on them. Verdicts of small judges are no evidence."
    ))
}
