//! The one-page report of a run: setup, accuracies, figures, and one part per case.
//!
//! A self-contained HTML file: inline style and pictures, no script, and a content policy that forbids all requests. [`cases`] limits its
//! size.

use std::path::{Path, PathBuf};

use minijinja::value::Serde;
use minijinja::{Environment, context};
use serde::Serialize;

use super::style::shortened;
use super::{Figure, FigureError, Section, captions};
use palimpsest_analysis::dose::words::paragraphs;
use palimpsest_analysis::dose::{DoseError, DoseOptions, Doses};
use palimpsest_analysis::lens::causes::Causes;
use palimpsest_analysis::lens::{AnalysedRun, Condition, LayerKind, Lens, LensError, Study};
use palimpsest_analysis::losses::words::in_words;
use palimpsest_analysis::losses::{LossError, Losses};
use palimpsest_analysis::records::join;
use palimpsest_analysis::results::labels::label_agreement;
use palimpsest_analysis::results::metrics::AccuracyTable;
use palimpsest_analysis::results::outcomes::Outcomes;
use palimpsest_analysis::why::labels::Labels;
use palimpsest_data::ground::numbers::percent;
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::condition::label;
use palimpsest_run::runs::cost::{CostRow, MeanCost};
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::judge_name::JudgeChoice;
use palimpsest_run::runs::judged::Judged;
use palimpsest_run::runs::labels::label_rows;

pub mod cases;
mod text;
mod view;

use view::View;

const TEMPLATE: &str = include_str!("report.html.j2");

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

#[derive(Debug, Default, Serialize)]
struct Part {
    id: &'static str,
    heading: Option<String>,
    about: Option<String>,
    words: Vec<String>,
    pictures: Vec<Picture>,
}

impl Part {
    fn told(id: &'static str, heading: &str, words: Vec<String>, figures: &[Figure]) -> Self {
        let pictures = figures.iter().map(picture).collect();
        Part { id, heading: Some(heading.to_owned()), about: None, words, pictures }
    }
}

#[derive(Debug, Serialize)]
struct Accuracy {
    /// Empty if there is only one condition.
    condition: String,
    table: AccuracyTable,
    /// Notes on rows outside the cells.
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
    /// Open; density versions are folded.
    main: bool,
}

/// Renders the page. `no_result`: why the verdicts are none. Without attention, the page says so and has no figures or shades.
fn page(
    views: &[View<'_>],
    no_result: Option<&str>,
    sections: Vec<Part>,
    told: Vec<Part>,
) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.add_filter("percent", percent);
    environment.add_filter("plural", |word: &str| captions::plural(word));
    environment.add_filter("address", address);
    environment.add_filter("shortened", |text: &str, most: usize| shortened(text, most));
    // the extension enables HTML escaping
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
    let (expected, cases) =
        (run.cases().iter().map(|case| case.probes.len()).sum::<usize>(), cases::parts(views)?);
    let facts = facts(run, lens, judge.clone(), views).into_iter();
    let page = context! {
        title => super::Origin::of(run, None).line,
        dir => run.path().display().to_string(),
        // The run's name in `palimpsest view` URLs.
        id => run.path().file_name().map(|name| name.to_string_lossy()).unwrap_or_default(),
        found => found(&accuracies, &told),
        facts => Serde(facts.chain(labels_checked(run).map_err(LensError::from)?).collect::<Vec<_>>()),
        header => format!("{:#}", run.header()),
        judge => judge.as_deref(),
        judge_note => judge.as_deref().filter(|_| no_result.is_none()).and_then(judge_note),
        accuracies => Serde(accuracies),
        no_result => no_result,
        warnings => views.iter().filter_map(warning).collect::<Vec<_>>(),
        conditions => views.iter().filter(|view| !view.condition.is_empty()).map(under).collect::<Vec<_>>(),
        shaded_by => shaded_by(views),
        attention => lens.is_some(),
        shaded_over => lens.map(shaded_over).unwrap_or_default(),
        viewer => lens.map_or("query", Lens::viewer),
        segment => run.benchmark().segment,
        answered => sum(&|view| view.run.answers().len()) - failed,
        cut => sum(&|view| view.run.answers().iter().filter(|row| row.reached_limit()).count()),
        failed => failed,
        expected => expected * views.len(),
        special_tokens_are_text => run.header_text("/identity/special_tokens").is_some_and(|how| how == "text"),
        costs => Serde(costs(views)),
        sections => Serde(shown(sections)),
        told => Serde(shown(told)),
        cases => Serde(cases),
    };
    Ok(template.render(page).map_err(FigureError::from)?)
}

fn shown(mut parts: Vec<Part>) -> Vec<Part> {
    parts.retain(|part| !part.pictures.is_empty() || !part.words.is_empty());
    parts
}

/// Percent-encodes a URL fragment.
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

/// Overall accuracy per condition, and the main finding of each section.
fn found(accuracies: &[Accuracy], told: &[Part]) -> Vec<String> {
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
    // Causes start with a definition and single sessions; the overall finding follows.
    let first = |part: &Part| {
        let words = &part.words;
        let found = if part.id == "causes" { words.get(2).or(words.get(1)) } else { words.first() };
        Some(format!("{}: {}", part.heading.as_deref()?, found.or(words.first())?))
    };
    overall.into_iter().chain(told.iter().filter_map(first)).collect()
}

/// Writes `report.html` into `folder` by rename and returns its path; selected conditions prefix the name.
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
    let part = |section: &Section| Part {
        heading: section.heading.clone(),
        about: section.about.as_deref().map(captions::capital),
        pictures: section.figures.iter().map(picture).collect(),
        ..Part::default()
    };
    let sections = sections.iter().map(part).collect();
    let mut told = Vec::new();
    // Memory systems, doses and labels belong to the whole run.
    if let Some(first) = study.conditions.first().filter(|_| study.selection.prefix.is_empty()) {
        told.extend(lost(study, &first.run)?);
        told.extend(by_dose(study)?);
        told.extend(labelled(study)?);
    }
    if let Some(causes) = causes {
        let words = super::cause_words::in_words(causes, study);
        told.push(Part::told("causes", "What made it answer", words, &super::draw_causes(causes, study)));
    }
    let name = format!("{}report.html", study.selection.prefix);
    let path = folder.join(name);
    let html = page(&views, study.no_result.as_deref(), sections, told)?;
    palimpsest_core::files::write_atomically(&path, html.as_bytes())
        .map_err(|source| FigureError::Io { path: path.clone(), source })?;
    Ok(path)
}

fn lost(study: &Study, run: &AnalysedRun) -> Result<Option<Part>, ReportError> {
    if run.identity().conditions_or_plain().iter().all(|condition| condition.memory.is_none()) {
        return Ok(None);
    }
    let losses = Losses::open(&study.folder, study.benchmark, JudgeChoice::of(study.judge.as_deref()))?;
    Ok(losses.map(|losses| {
        let figure = super::waterfall::memory_waterfall(&losses, &super::Origin::of(run, None).line);
        let words = in_words(std::slice::from_ref(&losses));
        Part::told("lost", "Where it was lost", words, &[figure])
    }))
}

fn labelled(study: &Study) -> Result<Option<Part>, ReportError> {
    let labels = Labels::open(&study.folder).map_err(LensError::from)?;
    let words = labels.map(|labels| labels.in_words());
    Ok(words.map(|words| Part::told("why", "Why answers are as they are", words, &[])))
}

/// Section on dose; `None` if no answer has log-probabilities.
fn by_dose(study: &Study) -> Result<Option<Part>, ReportError> {
    let doses = match Doses::of_run(study.folder.clone(), &DoseOptions::default()) {
        Ok(doses) => doses,
        Err(DoseError::OtherBenchmark { .. } | DoseError::NoContrast { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let residues = palimpsest_analysis::lens::causes::residue::in_words(&doses.residues, "session");
    let words = [paragraphs(&doses), residues].concat();
    Ok(Some(Part::told("doses", "What moves the update effect", words, &super::draw_doses(&doses))))
}

fn under(view: &View<'_>) -> minijinja::Value {
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
    context! { name => view.condition, about => captions::capital(view.about), came => came }
}

fn shaded_by(views: &[View<'_>]) -> Option<String> {
    let measured = views.iter().filter(|view| view.lens.is_some()).count();
    let shading: Vec<&str> = views.iter().filter(|view| view.shades).map(|view| view.condition).collect();
    match shading[..] {
        [one] if measured > 1 => Some(one.to_owned()),
        _ => None,
    }
}

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
    // inline SVG needs no namespace; the page sets its size
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

/// Header facts for display; absent ones are omitted.
fn facts(run: &AnalysedRun, lens: Option<&Lens>, judge: Option<String>, views: &[View<'_>]) -> Vec<Fact> {
    let text = |pointer: &str| run.header_text(&format!("/identity/{pointer}"));
    // Header texts with surrounding words; digests are shortened.
    let said = |parts: &[(&str, &str)]| -> Vec<String> {
        let said = parts.iter().filter_map(|(pointer, words)| {
            let text = text(pointer)?;
            let is_digest = pointer.ends_with("digest") || *pointer == "prompts";
            let digest = text.char_indices().nth(12).filter(|_| is_digest);
            let text = digest.map_or(text.clone(), |(end, _)| format!("{}…", &text[..end]));
            Some(words.replace("{}", &text))
        });
        said.collect()
    };
    let listed = |parts: &[(&str, &str)]| Some(said(parts).join(", ")).filter(|said| !said.is_empty());
    let with = |parts: &[(&str, &str)]| match &said(parts)[..] {
        [] => None,
        [first] => Some(first.clone()),
        [first, others @ ..] => Some(format!("{first} ({})", others.join(", "))),
    };
    let sampling = text("sampling/temperature").map(|temperature| {
        let drawn = [
            ("sampling/temperature", "temperature {}"),
            ("sampling/top_p", "top-p {}"),
            ("sampling/seed", "seed {}"),
        ];
        let how = if temperature.parse() == Ok(0.0) { vec!["greedy".to_owned()] } else { said(&drawn) };
        [how, said(&[("sampling/max_new_tokens", "at most {} new tokens")])].concat().join(", ")
    });
    let machine =
        ["/machine/device", "/machine/cpu", "/machine/os"].iter().filter_map(|p| run.header_text(p));
    let threads = run.header_text("/machine/threads").map(|threads| format!("{threads} threads"));
    let machine: Vec<String> = machine.chain(threads).collect();
    let tokenizer = [("context/tokenizer/name", "{}"), ("context/tokenizer/digest", "(SHA-256 {})")];
    let bound = [("context/chars_per_token", "at least {} characters a token")];
    let counted = [said(&tokenizer), said(&bound)].into_iter().find(|said| !said.is_empty());
    let reserved = said(&[("context/reserved", "({} tokens kept free for the chat template)")]);
    let counted = counted.map(|counted| [counted, reserved].concat().join(" "));
    let broken = run.cases().iter().filter(|case| case.broken.is_some()).count();
    let broken =
        (broken > 0).then(|| format!("{broken} of {}, not asked, counted as errors", run.cases().len()));
    let conditions: Vec<&str> =
        views.iter().map(|view| view.condition).filter(|name| !name.is_empty()).collect();
    let facts = [
        ("Benchmark", Some(run.benchmark().title.to_owned())),
        ("Model", with(&[("model/name", "{}"), ("model/digest", "SHA-256 {}")])),
        ("Data", with(&[("dataset/name", "{}"), ("dataset/digest", "SHA-256 {}")])),
        ("Layers", lens.filter(|lens| lens.has_kinds()).map(Lens::layers_in_words)),
        ("Cases", Some(run.cases().len().to_string())),
        ("Conditions", (!conditions.is_empty()).then(|| conditions.join(", "))),
        (
            "Selection",
            listed(&[
                ("sample/cases", "sample {}"),
                ("sample/seed", "sample seed {}"),
                ("only", "only {}"),
                ("limit", "limit {}"),
            ]),
        ),
        ("Context", with(&[("context/tokens", "{} tokens"), ("context/policy", "{}")])),
        ("Tokens counted by", counted),
        ("Numbers of cut histories", text("context/session_numbers")),
        ("Broken rows", broken),
        ("Thoughts", thoughts(run)),
        ("Special tokens in the data", listed(&[("special_tokens", "read as {}")])),
        ("Dtype", text("dtype")),
        ("Dtype of the cache", text("cache_dtype")),
        ("Sampling", sampling),
        ("Parameters refused", refused(views)),
        ("Seed", text("seed")),
        ("Prompts", listed(&[("prompts", "SHA-256 {}")])),
        ("Judge", Some(judge.unwrap_or_else(|| "none yet".to_owned()))),
        ("Machine", (!machine.is_empty()).then(|| machine.join(", "))),
        ("Attention by", attention_by(run)),
        ("palimpsest", text("version")),
    ];
    facts.into_iter().filter_map(|(name, value)| Some(Fact { name, value: value? })).collect()
}

fn labels_checked(run: &AnalysedRun) -> Result<Option<Fact>, RunError> {
    let Some(check) = run.benchmark().label_check else { return Ok(None) };
    let agreements = label_agreement(&check, run.cases(), &label_rows(run.path())?);
    let lines = agreements.iter().map(|agreement| format!("{}: {}", agreement.judge, agreement.line()));
    let lines: Vec<String> = lines.collect();
    Ok((!lines.is_empty()).then(|| Fact { name: "Labels checked", value: lines.join("; ") }))
}

/// Attention kernels; `None` for runs that did not record them.
fn attention_by(run: &AnalysedRun) -> Option<String> {
    let names = |field: &str| {
        let list = run.header().pointer(&format!("/machine/attention_kernel/{field}"))?.as_array()?;
        Some(list.iter().filter_map(|name| name.as_str()).collect::<Vec<_>>().join(" and "))
    };
    let chosen = run.header_text("/machine/attention_kernel/chosen")?;
    Some(format!("{} ({chosen}), sums of rows by {}", names("forward")?, names("sums")?))
}

/// Reasoning settings; `None` for models without reasoning.
fn thoughts(run: &AnalysedRun) -> Option<String> {
    let said = [
        ("mode", "{}"),
        ("max_tokens", "at most {} tokens beside the answer"),
        ("reasoning_effort", "effort {}"),
    ];
    let said = said.into_iter().filter_map(|(field, words)| {
        Some(words.replace("{}", &run.header_text(&format!("/identity/thinking/{field}"))?))
    });
    let kwargs = run.header().pointer("/identity/thinking/chat_template_kwargs");
    let kwargs = kwargs.map(|kwargs| format!("the server's template was sent {kwargs}"));
    let parts: Vec<String> = said.chain(kwargs).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Parameters that an endpoint rejected and requests omitted.
fn refused(views: &[View<'_>]) -> Option<String> {
    let answers = views.iter().flat_map(|view| view.run.answers()).flat_map(|row| &row.refused_parameters);
    let verdicts = views.iter().filter_map(|view| view.verdicts).flat_map(Judged::rows);
    let verdicts = verdicts.flat_map(|row| &row.refused_parameters);
    let all = unique(answers.map(|name| (name, "model")).chain(verdicts.map(|name| (name, "judge"))));
    let all: Vec<String> = all.into_iter().map(|(name, whose)| format!("{name} ({whose})")).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Mean cost per case, if recorded.
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

/// Warns that a local judge may be unreliable.
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
