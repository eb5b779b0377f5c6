//! The one-page report of a run: what was run, the table of accuracies, the figures, and a part for each case.
//!
//! One HTML file that needs nothing else: style and pictures are in it, there is no script, and its content policy forbids
//! every request. The page grows with the histories; [`cases`] says where it cuts.

use std::path::{Path, PathBuf};

use minijinja::Environment;
use minijinja::value::Serde;
use serde::Serialize;

use super::style::shortened;
use super::{Figure, FigureError, Section, captions};
use crate::dose::words::paragraphs;
use crate::dose::{DoseError, DoseOptions, Doses};
use crate::ground::numbers::percent;
use crate::ground::order::unique;
use crate::lens::causes::Causes;
use crate::lens::{AnalysedRun, Condition, LayerKind, Lens, LensError, Study};
use crate::losses::words::in_words;
use crate::losses::{LossError, Losses};
use crate::records::join;
use crate::results::labels::label_agreement;
use crate::results::metrics::AccuracyTable;
use crate::results::outcomes::Outcomes;
use crate::run::condition::label;
use crate::run::cost::{CostRow, MeanCost};
use crate::run::error::RunError;
use crate::run::judge_name::JudgeChoice;
use crate::run::judged::Judged;
use crate::run::labels::label_rows;
use crate::why::labels::Labels;

pub mod cases;
mod text;
mod view;

use view::View;

const TEMPLATE: &str = include_str!("report.html.j2");

/// Why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error(transparent)]
    Lens(#[from] LensError),
    #[error(transparent)]
    Losses(#[from] LossError),
    #[error(transparent)]
    Doses(#[from] DoseError),
    #[error(transparent)]
    Figure(#[from] FigureError),
}

/// The input of the template.
#[derive(Debug, Serialize)]
struct Page {
    title: String,
    /// The run's folder, and its name in addresses of `palimpsest view`.
    dir: String,
    id: String,
    /// What was found, in words: a paragraph each.
    found: Vec<String>,
    facts: Vec<Fact>,
    header: String,
    judge: Option<String>,
    judge_note: Option<String>,
    /// Why there is no accuracy to show although there are verdicts.
    no_result: Option<String>,
    warnings: Vec<String>,
    /// By condition; of one condition without a name.
    accuracies: Vec<Accuracy>,
    /// The conditions; none of a run of the plain one alone.
    conditions: Vec<Under>,
    /// The condition that alone shades the segments, where there is no room for all.
    shaded_by: Option<String>,
    attention: bool,
    /// Which layers the segments' shades are averaged over, in words.
    shaded_over: String,
    /// Whose attention it is: `query`.
    viewer: &'static str,
    /// The name of a segment of a history.
    segment: &'static str,
    answered: usize,
    /// Answers that the limit of new tokens cut off.
    cut: usize,
    failed: usize,
    expected: usize,
    /// True if text that spells a special token was read as text.
    special_tokens_are_text: bool,
    /// The mean cost of a case, in words: answers, then judging.
    costs: Vec<Fact>,
    sections: Vec<Pictures>,
    told: Vec<Told>,
    cases: Vec<serde_json::Value>,
}

#[derive(Debug, Serialize)]
struct Under {
    name: String,
    about: String,
    /// The number of answers of all, and why no figures.
    came: String,
}

/// Pictures that belong together.
#[derive(Debug, Serialize)]
struct Pictures {
    heading: Option<String>,
    about: Option<String>,
    pictures: Vec<Picture>,
}

/// A section that begins in words: the losses of memory systems, the causes of answers.
#[derive(Debug, Serialize)]
struct Told {
    id: &'static str,
    heading: &'static str,
    words: Vec<String>,
    pictures: Vec<Picture>,
}

#[derive(Debug, Serialize)]
struct Accuracy {
    /// The condition's name; empty where there is one.
    condition: String,
    table: AccuracyTable,
    /// Notes on what stands apart from its cells.
    apart: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Fact {
    name: &'static str,
    value: String,
}

#[derive(Debug, Serialize)]
struct Picture {
    name: String,
    title: String,
    caption: String,
    svg: String,
    width: u32,
    /// Shown at once, or folded away with the density versions.
    main: bool,
}

/// The page as text. `no_result` says why the verdicts are none. Without attention it has no figures and no shades, and says so.
fn page(
    views: &[View<'_>],
    no_result: Option<&str>,
    sections: Vec<Pictures>,
    told: Vec<Told>,
) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.add_filter("percent", percent);
    environment.add_filter("plural", |word: &str| captions::plural(word));
    environment.add_filter("address", address);
    environment.add_filter("shortened", |text: &str, most: usize| shortened(text, most));
    // the name's ending turns HTML escaping on
    environment.add_template("report.html", TEMPLATE).map_err(FigureError::from)?;
    let template = environment.get_template("report.html").map_err(FigureError::from)?;
    let Some(first) = views.first() else {
        return Err(
            FigureError::Draw { figure: "report".to_owned(), reason: "no run was given".to_owned() }.into()
        );
    };
    let run = first.run;
    let judge = views.iter().find_map(|view| Some(view.verdicts?.name.label.clone()));
    let lens = views.iter().find_map(|view| view.lens);
    let sum = |of: &dyn Fn(&View<'_>) -> usize| views.iter().map(of).sum::<usize>();
    let failed = sum(&|view| view.run.answers().iter().filter(|row| row.error.is_some()).count());
    let accuracy = |view: &View<'_>| {
        let verdicts = view.verdicts.filter(|_| no_result.is_none())?;
        let (one, name) = (view.run, verdicts.name);
        let records = join(one.cases(), one.condition(), one.answers(), verdicts.rows());
        let outcomes = Outcomes::of(run.benchmark(), &records, &name.judge);
        let table = AccuracyTable::of(&outcomes, &name.label);
        let apart = outcomes.apart_in_words();
        Some(Accuracy { condition: view.condition.to_owned(), table, apart })
    };
    let warning = |view: &View<'_>| {
        let warning = view.verdicts?.warning().filter(|_| no_result.is_none())?;
        Some(if view.condition.is_empty() { warning } else { format!("{}: {warning}", view.condition) })
    };
    let accuracies: Vec<Accuracy> = views.iter().filter_map(accuracy).collect();
    let page = Page {
        title: super::Origin::of(run, None).line,
        dir: run.path().display().to_string(),
        id: run.path().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        found: found(&accuracies, &told),
        facts: facts(run, lens, judge.clone(), views)
            .into_iter()
            .chain(labels_checked(run).map_err(LensError::from)?)
            .collect(),
        header: format!("{:#}", run.header()),
        judge: judge.clone(),
        judge_note: judge.as_deref().filter(|_| no_result.is_none()).and_then(judge_note),
        accuracies,
        no_result: no_result.map(str::to_owned),
        warnings: views.iter().filter_map(warning).collect(),
        conditions: views.iter().filter(|view| !view.condition.is_empty()).map(under).collect(),
        shaded_by: shaded_by(views),
        attention: lens.is_some(),
        shaded_over: lens.map(shaded_over).unwrap_or_default(),
        viewer: lens.map_or("query", Lens::viewer),
        segment: run.benchmark().segment,
        answered: sum(&|view| view.run.answers().len()) - failed,
        cut: sum(&|view| view.run.answers().iter().filter(|row| row.reached_limit()).count()),
        failed,
        expected: run.cases().iter().map(|case| case.probes.len()).sum::<usize>() * views.len(),
        special_tokens_are_text: run.header_text("/identity/special_tokens").is_some_and(|how| how == "text"),
        costs: costs(views),
        sections: sections.into_iter().filter(|section| !section.pictures.is_empty()).collect(),
        told: told.into_iter().filter(|part| !part.pictures.is_empty() || !part.words.is_empty()).collect(),
        cases: cases::parts(views)?,
    };
    Ok(template.render(Serde(&page)).map_err(FigureError::from)?)
}

/// A text as a value behind the # of an address.
fn address(text: &str) -> String {
    let mut written = String::new();
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._/:".contains(&byte) {
            true => written.push(char::from(byte)),
            false => written += &format!("%{byte:02X}"),
        }
    }
    written
}

/// The overall accuracy under each condition, and the finding of each section that begins in words.
fn found(accuracies: &[Accuracy], told: &[Told]) -> Vec<String> {
    let right = |one: &Accuracy| {
        let overall = &one.table.overall;
        let share = percent(overall.accuracy?);
        let interval = overall.interval.as_ref();
        let interval = interval.map(|at| format!(" (95%: {}–{}%)", percent(at.low), percent(at.high)));
        let under = if one.condition.is_empty() { String::new() } else { format!("{}: ", one.condition) };
        Some(format!("{under}{share}%{}", interval.unwrap_or_default()))
    };
    let shares: Vec<String> = accuracies.iter().filter_map(right).collect();
    let of_cells = accuracies.iter().any(|one| one.table.overall.of_cells);
    let over = if of_cells { "mean of the cells" } else { "over all probes" };
    let overall = (!shares.is_empty()).then(|| format!("Accuracy, {over}: {}.", shares.join("; ")));
    // The causes begin with their definition and single sessions; what holds of all follows.
    let first = |part: &Told| {
        let words = &part.words;
        let found = if part.id == "causes" { words.get(2).or(words.get(1)) } else { words.first() };
        Some(format!("{}: {}", part.heading, found.or(words.first())?))
    };
    overall.into_iter().chain(told.iter().filter_map(first)).collect()
}

/// Writes the page of a study as `report.html` into `folder`, by rename, and returns where it is. Of conditions that were asked for, the name
/// begins with theirs.
pub fn write_study(
    study: &Study,
    sections: &[Section],
    causes: Option<&Causes>,
    folder: &Path,
) -> Result<PathBuf, ReportError> {
    let several = study.selection.several;
    let words: Vec<String> =
        study.conditions.iter().map(|condition| study.condition_in_words(&condition.name)).collect();
    let shading = cases::shading(study);
    let judged: Vec<Option<Judged<'_>>> = study.conditions.iter().map(Condition::verdicts).collect();
    let mut views = Vec::new();
    for ((condition, about), verdicts) in study.conditions.iter().zip(&words).zip(&judged) {
        views.push(View {
            condition: if several { label(&condition.name) } else { "" },
            about,
            without: condition.without.as_deref(),
            shades: shading.contains(&condition.name.as_str()),
            run: &condition.run,
            verdicts: verdicts.as_ref(),
            lens: condition.lens.as_ref(),
        });
    }
    let pictures = |section: &Section| Pictures {
        heading: section.heading.clone(),
        about: section.about.as_deref().map(captions::capital),
        pictures: section.figures.iter().map(picture).collect(),
    };
    let sections = sections.iter().map(pictures).collect();
    let mut told = Vec::new();
    told.extend(lost(study)?);
    told.extend(by_dose(study)?);
    told.extend(labelled(study)?);
    if let Some(causes) = causes {
        told.push(Told {
            id: "causes",
            heading: "What made it answer",
            words: super::cause_words::in_words(causes, study),
            pictures: super::draw_causes(causes, study)?.iter().map(picture).collect(),
        });
    }
    let name = format!("{}report.html", study.selection.prefix);
    put(&page(&views, study.no_result.as_deref(), sections, told)?, &folder.join(name))
}

/// The section on a run's memory systems, under all of their conditions; none where some conditions were asked for.
fn lost(study: &Study) -> Result<Option<Told>, ReportError> {
    let Some(first) = study.conditions.first().filter(|_| study.selection.prefix.is_empty()) else {
        return Ok(None);
    };
    let all = first.run.identity().conditions_or_plain();
    if all.iter().all(|condition| condition.memory.is_none()) {
        return Ok(None);
    }
    let choice = JudgeChoice::of(study.judge.as_deref());
    let Some(losses) = Losses::open(&study.folder, study.benchmark, choice)? else { return Ok(None) };
    let figure = super::memory_waterfall(&losses, &super::Origin::of(&first.run, None).line)?;
    Ok(Some(Told {
        id: "lost",
        heading: "Where it was lost",
        words: in_words(std::slice::from_ref(&losses)),
        pictures: vec![picture(&figure)],
    }))
}

/// The section on the labels of a run's answers; none where some conditions were asked for, and of a run without labels.
fn labelled(study: &Study) -> Result<Option<Told>, ReportError> {
    if !study.selection.prefix.is_empty() {
        return Ok(None);
    }
    let labels = Labels::open(&study.folder).map_err(LensError::from)?;
    Ok(labels.map(|labels| Told {
        id: "why",
        heading: "Why answers are as they are",
        words: crate::why::words::in_words(&labels),
        pictures: Vec::new(),
    }))
}

/// The section on a run of dose; none where some conditions were asked for, and where no answer has log-probabilities.
fn by_dose(study: &Study) -> Result<Option<Told>, ReportError> {
    if !study.selection.prefix.is_empty() {
        return Ok(None);
    }
    let doses = match Doses::of_run(study.folder.clone(), &DoseOptions::default()) {
        Ok(doses) => doses,
        Err(DoseError::OtherBenchmark { .. } | DoseError::NoContrast { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(Told {
        id: "doses",
        heading: "What moves the update effect",
        words: [paragraphs(&doses), crate::lens::causes::residue::in_words(&doses.residues, "session")]
            .concat(),
        pictures: super::draw_doses(&doses)?.iter().map(picture).collect(),
    }))
}

fn put(html: &str, path: &Path) -> Result<PathBuf, ReportError> {
    palimpsest_core::files::write_atomically(path, html.as_bytes())
        .map_err(|source| FigureError::Io { path: path.to_owned(), source })?;
    Ok(path.to_owned())
}

/// The description and the outcome of a condition.
fn under(view: &View<'_>) -> Under {
    let answers = view.run.answers();
    let failed = answers.iter().filter(|row| row.error.is_some()).count();
    let expected = view.run.cases().iter().map(|case| case.probes.len()).sum::<usize>();
    let mut came = format!("{} of {expected} answered", answers.len() - failed);
    if failed > 0 {
        came += &format!(", {failed} failed");
    }
    if let Some(why) = view.without {
        came += &format!("; no figures of it: {why}");
    }
    Under { name: view.condition.to_owned(), about: captions::capital(view.about), came }
}

/// The one of several measured conditions that shades the segments of cases.
fn shaded_by(views: &[View<'_>]) -> Option<String> {
    let measured = views.iter().filter(|view| view.lens.is_some()).count();
    let shading: Vec<&str> = views.iter().filter(|view| view.shades).map(|view| view.condition).collect();
    match shading[..] {
        [one] if measured > 1 => Some(one.to_owned()),
        _ => None,
    }
}

/// Which layers the shades of segments are averaged over.
fn shaded_over(lens: &Lens) -> String {
    match lens.layer_kinds().as_slice() {
        [(LayerKind::Softmax, _)] | [] => "layers".to_owned(),
        [(LayerKind::Windowed, _)] => "layers (all windowed)".to_owned(),
        [(LayerKind::Linear, _), ..] => "layers (all linear: it is the share of |weight|)".to_owned(),
        [(kind, count), others @ ..] => {
            let others: Vec<String> =
                others.iter().map(|(kind, count)| format!("{count} {}", kind.key())).collect();
            format!(
                "the {count} {} layers (the {} layers are averaged apart, beside each answer)",
                kind.key(),
                others.join(" and ")
            )
        }
    }
}

fn picture(figure: &Figure) -> Picture {
    // inside HTML an SVG needs no namespace, and its size is the page's to give
    let svg = figure.svg.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
    let number = |key: &str| {
        let value = svg.split_once(&format!("{key}=\"")).and_then(|(_, rest)| rest.split_once('"'));
        value.and_then(|(number, _)| number.parse().ok()).unwrap_or(900)
    };
    Picture {
        name: figure.name.clone(),
        title: figure.title.clone(),
        caption: figure.caption.clone(),
        width: number("width"),
        main: !figure.name.ends_with("-density"),
        svg,
    }
}

/// The header as a reader wants it; what is absent is left out.
fn facts(run: &AnalysedRun, lens: Option<&Lens>, judge: Option<String>, views: &[View<'_>]) -> Vec<Fact> {
    let text = |pointer: &str| run.header_text(pointer);
    let short = |pointer: &str| {
        text(pointer).map(|digest| match digest.char_indices().nth(12) {
            Some((end, _)) => format!("{}…", &digest[..end]),
            None => digest,
        })
    };
    let with = |value: Option<String>, more: Option<String>, sign: &str| match (value, more) {
        (Some(value), Some(more)) => Some(format!("{value} ({sign}{more})")),
        (value, _) => value,
    };
    let most = text("/identity/sampling/max_new_tokens").map(|most| format!("at most {most} new tokens"));
    let sampling = text("/identity/sampling/temperature").map(|temperature| {
        let mut parts = Vec::new();
        if temperature.parse() == Ok(0.0) {
            parts.push("greedy".to_owned());
        } else {
            parts.push(format!("temperature {temperature}"));
            parts.extend(text("/identity/sampling/top_p").map(|p| format!("top-p {p}")));
            parts.extend(text("/identity/sampling/seed").map(|seed| format!("seed {seed}")));
        }
        parts.extend(most);
        parts.join(", ")
    });
    let machine = ["/machine/device", "/machine/cpu", "/machine/os"].iter().filter_map(|p| text(p));
    let machine: Vec<String> =
        machine.chain(text("/machine/threads").map(|threads| format!("{threads} threads"))).collect();
    let context = text("/identity/context/tokens").map(|tokens| format!("{tokens} tokens"));
    let selection = [
        ("sample", "/identity/sample/cases"),
        ("sample seed", "/identity/sample/seed"),
        ("only", "/identity/only"),
        ("limit", "/identity/limit"),
    ];
    let selection: Vec<String> =
        selection.iter().filter_map(|(name, pointer)| Some(format!("{name} {}", text(pointer)?))).collect();
    let counted = text("/identity/context/tokenizer/name").map(|name| {
        let digest = short("/identity/context/tokenizer/digest").unwrap_or_default();
        format!("{name} (SHA-256 {digest})")
    });
    let bound =
        || text("/identity/context/chars_per_token").map(|x| format!("at least {x} characters a token"));
    let counted = with(
        counted.or_else(bound),
        text("/identity/context/reserved").map(|n| format!("{n} tokens kept free for the chat template")),
        "",
    );
    let broken = run.cases().iter().filter(|case| case.broken.is_some()).count();
    let broken = format!("{broken} of {}, not asked, counted as errors", run.cases().len());
    let conditions: Vec<&str> =
        views.iter().map(|view| view.condition).filter(|name| !name.is_empty()).collect();
    let facts = [
        ("Benchmark", Some(run.benchmark().title.to_owned())),
        ("Model", with(text("/identity/model/name"), short("/identity/model/digest"), "SHA-256 ")),
        ("Data", with(text("/identity/dataset/name"), short("/identity/dataset/digest"), "SHA-256 ")),
        ("Layers", lens.filter(|lens| lens.has_kinds()).map(Lens::layers_in_words)),
        ("Cases", Some(run.cases().len().to_string())),
        ("Conditions", (!conditions.is_empty()).then(|| conditions.join(", "))),
        ("Selection", (!selection.is_empty()).then(|| selection.join(", "))),
        (
            "Context",
            with(context.or_else(|| text("/identity/context/policy")), text("/identity/context/policy"), ""),
        ),
        ("Tokens counted by", counted),
        ("Numbers of cut histories", text("/identity/context/session_numbers")),
        ("Broken rows", run.cases().iter().any(|case| case.broken.is_some()).then_some(broken)),
        ("Thoughts", thoughts(run)),
        ("Special tokens in the data", text("/identity/special_tokens").map(|how| format!("read as {how}"))),
        ("Dtype", text("/identity/dtype")),
        ("Dtype of the cache", text("/identity/cache_dtype")),
        ("Sampling", sampling),
        ("Parameters refused", refused(views)),
        ("Seed", text("/identity/seed")),
        ("Prompts", short("/identity/prompts").map(|digest| format!("SHA-256 {digest}"))),
        ("Judge", Some(judge.unwrap_or_else(|| "none yet".to_owned()))),
        ("Machine", (!machine.is_empty()).then(|| machine.join(", "))),
        ("Attention by", attention_by(run)),
        ("palimpsest", text("/identity/version")),
    ];
    facts.into_iter().filter_map(|(name, value)| Some(Fact { name, value: value? })).collect()
}

/// Agreement of judges that were not told a label of the data with it, where any was asked.
fn labels_checked(run: &AnalysedRun) -> Result<Option<Fact>, RunError> {
    let Some(check) = run.benchmark().label_check else { return Ok(None) };
    let agreements = label_agreement(&check, run.cases(), &label_rows(run.path())?);
    let lines = agreements.iter().map(|agreement| format!("{}: {}", agreement.judge, agreement.line()));
    let lines: Vec<String> = lines.collect();
    Ok((!lines.is_empty()).then(|| Fact { name: "Labels checked", value: lines.join("; ") }))
}

/// The kernels of attention; nothing of runs without a choice.
fn attention_by(run: &AnalysedRun) -> Option<String> {
    let names = |field: &str| {
        let list = run.header().pointer(&format!("/machine/attention_kernel/{field}"))?.as_array()?;
        Some(list.iter().filter_map(|name| name.as_str()).collect::<Vec<_>>().join(" and "))
    };
    let chosen = run.header_text("/machine/attention_kernel/chosen")?;
    Some(format!("{} ({chosen}), sums of rows by {}", names("forward")?, names("sums")?))
}

/// The settings of thoughts; nothing of a model that has none.
fn thoughts(run: &AnalysedRun) -> Option<String> {
    let text = |field: &str| run.header_text(&format!("/identity/thinking/{field}"));
    let parts = [
        text("mode"),
        text("max_tokens").map(|most| format!("at most {most} tokens beside the answer")),
        text("reasoning_effort").map(|effort| format!("effort {effort}")),
        run.header()
            .pointer("/identity/thinking/chat_template_kwargs")
            .map(|kwargs| format!("the server's template was sent {kwargs}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Parameters that an endpoint refused, so that requests went without them.
fn refused(views: &[View<'_>]) -> Option<String> {
    let answers = views.iter().flat_map(|view| view.run.answers()).flat_map(|row| &row.refused_parameters);
    let verdicts = views.iter().filter_map(|view| view.verdicts).flat_map(Judged::rows);
    let verdicts = verdicts.flat_map(|row| &row.refused_parameters);
    let all = unique(answers.map(|name| (name, "model")).chain(verdicts.map(|name| (name, "judge"))));
    let all: Vec<String> = all.into_iter().map(|(name, whose)| format!("{name} ({whose})")).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// The mean cost of a case, where it was recorded.
fn costs(views: &[View<'_>]) -> Vec<Fact> {
    let of = |name, mean: Option<MeanCost>| {
        mean.map(|mean| Fact { name, value: format!("{mean}; mean of {} cases", mean.cases) })
    };
    let rows: Vec<CostRow> = views.iter().flat_map(|view| view.run.costs()).cloned().collect();
    of("Answers", MeanCost::of_answers(&rows))
        .into_iter()
        .chain(of("Judge", MeanCost::of_judges(&rows)))
        .collect()
}

/// A warning about a judge that runs locally: its verdicts may be wrong.
fn judge_note(judge: &str) -> Option<String> {
    let name = judge.strip_prefix("local:")?;
    Some(format!(
        "The judge was local:{name}, a model that ran locally. How well it judges is not known: check a sample of its verdicts \
         by hand before you rest anything on them. Verdicts of small judges are no evidence."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_judges_are_warned_about() {
        assert!(judge_note("local:qwen3.5-27b").unwrap().contains("qwen3.5-27b"));
        assert_eq!(judge_note("http://host/v1#gpt"), None);
    }
}
