//! The one-page report of a run: setup, accuracies, figures, and one part per case.
//!
//! A self-contained HTML file: inline style and pictures, no script, and a content policy that forbids all requests. [`cases`] limits its
//! size.

use std::path::{Path, PathBuf};

use minijinja::value::Serde;
use minijinja::{Environment, Value, context};
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

use cases::View;

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
        // inline SVG needs no namespace; the page sets its size
        svg => figure.svg.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1),
        width => figure.drawing.size.0.round() as u32,
        // Open; density versions are folded.
        main => !figure.name.ends_with("-density"),
    }
}

#[derive(Serialize)]
struct Accuracy {
    /// Empty if there is only one condition.
    condition: String,
    table: AccuracyTable,
    /// Notes on rows outside the cells.
    apart: Vec<String>,
}

/// Name and value.
type Fact = (&'static str, String);

/// Renders the page. `no_result`: why the verdicts are none. Without attention, the page says so and has no figures or shades.
fn page(
    views: &[View<'_>],
    no_result: Option<&str>,
    sections: &[Section],
    told: &[Section],
) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    environment.add_filter("percent", percent);
    environment.add_filter("plural", |word: &str| captions::plural(word));
    environment.add_filter("address", address);
    environment.add_filter("shortened", |text: &str, most: usize| shortened(text, most));
    // the extension enables HTML escaping
    environment.add_template("report.html", TEMPLATE).map_err(FigureError::from)?;
    let template = environment.get_template("report.html").map_err(FigureError::from)?;
    let run = views[0].run;
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
    let expected = run.cases().iter().map(|case| case.probes.len()).sum::<usize>();
    let mut facts = facts(run, lens, judge.as_deref(), views);
    facts.extend(labels_checked(run).map_err(LensError::from)?);
    let page = context! {
        title => super::Origin::of(run, None).line,
        dir => run.path().display().to_string(),
        // The run's name in `palimpsest view` URLs.
        id => run.path().file_name().map(|name| name.to_string_lossy()).unwrap_or_default(),
        found => found(&accuracies, told),
        facts => facts,
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
        costs => costs(views),
        sections => parts(sections),
        told => parts(told),
        cases => Serde(cases::parts(views)?),
    };
    Ok(template.render(page).map_err(FigureError::from)?)
}

/// Percent-encodes a URL fragment.
fn address(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/:".contains(&byte);
    let written = |byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(written).collect()
}

/// Overall accuracy per condition, and the main finding of each section.
fn found(accuracies: &[Accuracy], told: &[Section]) -> Vec<String> {
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
    let first = |part: &Section| {
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
    let (several, shading) = (study.selection.several, cases::shading(study));
    let judged: Vec<Option<Judged<'_>>> = study.conditions.iter().map(Condition::verdicts).collect();
    let views = study.conditions.iter().zip(&judged).map(|(of, verdicts)| View {
        condition: if several { label(&of.name) } else { "" },
        about: captions::capital(&study.condition_in_words(&of.name)),
        without: of.without.as_deref(),
        shades: shading.contains(&of.name.as_str()),
        run: &of.run,
        verdicts: verdicts.as_ref(),
        lens: of.lens.as_ref(),
    });
    let views: Vec<View<'_>> = views.collect();
    let mut told = Vec::new();
    // Memory systems, doses and labels belong to the whole run.
    if let Some(first) = study.conditions.first().filter(|_| study.selection.prefix.is_empty()) {
        told.extend(lost(study, &first.run)?);
        told.extend(by_dose(study)?);
        told.extend(labelled(study)?);
    }
    if let Some(causes) = causes {
        let words = super::cause_words::in_words(causes, study);
        let figures = super::draw_causes(causes, study);
        told.push(Section::told("causes", "What made it answer", words, figures));
    }
    let path = folder.join(format!("{}report.html", study.selection.prefix));
    let html = page(&views, study.no_result.as_deref(), sections, &told)?;
    palimpsest_core::files::write_atomically(&path, html.as_bytes())
        .map_err(|source| FigureError::Io { path: path.clone(), source })?;
    Ok(path)
}

impl Section {
    fn told(id: &'static str, heading: &str, words: Vec<String>, figures: Vec<Figure>) -> Self {
        Section { id, heading: Some(heading.to_owned()), about: None, words, figures }
    }
}

fn lost(study: &Study, run: &AnalysedRun) -> Result<Option<Section>, ReportError> {
    if run.identity().conditions_or_plain().iter().all(|condition| condition.memory.is_none()) {
        return Ok(None);
    }
    let losses = Losses::open(&study.folder, study.benchmark, JudgeChoice::of(study.judge.as_deref()))?;
    Ok(losses.map(|losses| {
        let figure = super::waterfall::memory_waterfall(&losses, &super::Origin::of(run, None).line);
        let words = in_words(std::slice::from_ref(&losses));
        Section::told("lost", "Where it was lost", words, vec![figure])
    }))
}

fn labelled(study: &Study) -> Result<Option<Section>, ReportError> {
    let labels = Labels::open(&study.folder).map_err(LensError::from)?;
    let words = labels.map(|labels| labels.in_words());
    Ok(words.map(|words| Section::told("why", "Why answers are as they are", words, Vec::new())))
}

/// Section on dose; `None` if no answer has log-probabilities.
fn by_dose(study: &Study) -> Result<Option<Section>, ReportError> {
    let doses = match Doses::of_run(study.folder.clone(), &DoseOptions::default()) {
        Ok(doses) => doses,
        Err(DoseError::OtherBenchmark { .. } | DoseError::NoContrast { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let residues = palimpsest_analysis::lens::causes::residue::in_words(&doses.residues, "session");
    let words = [paragraphs(&doses), residues].concat();
    Ok(Some(Section::told("doses", "What moves the update effect", words, super::draw_doses(&doses))))
}

fn under(view: &View<'_>) -> Value {
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
    context! { name => view.condition, about => &view.about, came => came }
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

/// Header facts for display; absent ones are omitted.
fn facts(run: &AnalysedRun, lens: Option<&Lens>, judge: Option<&str>, views: &[View<'_>]) -> Vec<Fact> {
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
    let joined = |parts: Vec<String>| (!parts.is_empty()).then(|| parts.join(", "));
    let listed = |parts: &[(&str, &str)]| joined(said(parts));
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
    let tokenizer = [("context/tokenizer/name", "{}"), ("context/tokenizer/digest", "(SHA-256 {})")];
    let bound = [("context/chars_per_token", "at least {} characters a token")];
    let counted = [said(&tokenizer), said(&bound)].into_iter().find(|said| !said.is_empty());
    let reserved = said(&[("context/reserved", "({} tokens kept free for the chat template)")]);
    let counted = counted.map(|counted| [counted, reserved].concat().join(" "));
    let broken = run.cases().iter().filter(|case| case.broken.is_some()).count();
    let broken =
        (broken > 0).then(|| format!("{broken} of {}, not asked, counted as errors", run.cases().len()));
    let conditions = views.iter().map(|view| view.condition).filter(|name| !name.is_empty());
    let mut thoughts = said(&[
        ("thinking/mode", "{}"),
        ("thinking/max_tokens", "at most {} tokens beside the answer"),
        ("thinking/reasoning_effort", "effort {}"),
    ]);
    let kwargs = run.header().pointer("/identity/thinking/chat_template_kwargs");
    thoughts.extend(kwargs.map(|kwargs| format!("the server's template was sent {kwargs}")));
    let selection = [
        ("sample/cases", "sample {}"),
        ("sample/seed", "sample seed {}"),
        ("only", "only {}"),
        ("limit", "limit {}"),
    ];
    let facts = [
        ("Benchmark", Some(run.benchmark().title.to_owned())),
        ("Model", with(&[("model/name", "{}"), ("model/digest", "SHA-256 {}")])),
        ("Data", with(&[("dataset/name", "{}"), ("dataset/digest", "SHA-256 {}")])),
        ("Layers", lens.filter(|lens| lens.has_kinds()).map(Lens::layers_in_words)),
        ("Cases", Some(run.cases().len().to_string())),
        ("Conditions", joined(conditions.map(str::to_owned).collect())),
        ("Selection", listed(&selection)),
        ("Context", with(&[("context/tokens", "{} tokens"), ("context/policy", "{}")])),
        ("Tokens counted by", counted),
        ("Numbers of cut histories", text("context/session_numbers")),
        ("Broken rows", broken),
        ("Thoughts", joined(thoughts)),
        ("Special tokens in the data", listed(&[("special_tokens", "read as {}")])),
        ("Dtype", text("dtype")),
        ("Dtype of the cache", text("cache_dtype")),
        ("Sampling", sampling),
        ("Parameters refused", joined(refused(views))),
        ("Seed", text("seed")),
        ("Prompts", listed(&[("prompts", "SHA-256 {}")])),
        ("Judge", Some(judge.unwrap_or("none yet").to_owned())),
        ("Machine", joined(machine.chain(threads).collect())),
        ("Attention by", attention_by(run)),
        ("palimpsest", text("version")),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn labels_checked(run: &AnalysedRun) -> Result<Option<Fact>, RunError> {
    let Some(check) = run.benchmark().label_check else { return Ok(None) };
    let agreements = label_agreement(&check, run.cases(), &label_rows(run.path())?);
    let lines = agreements.iter().map(|agreement| format!("{}: {}", agreement.judge, agreement.line()));
    let lines: Vec<String> = lines.collect();
    Ok((!lines.is_empty()).then(|| ("Labels checked", lines.join("; "))))
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

/// Parameters that an endpoint rejected and requests omitted.
fn refused(views: &[View<'_>]) -> Vec<String> {
    let answers = views.iter().flat_map(|view| view.run.answers()).flat_map(|row| &row.refused_parameters);
    let verdicts = views.iter().filter_map(|view| view.verdicts).flat_map(Judged::rows);
    let verdicts = verdicts.flat_map(|row| &row.refused_parameters);
    let answers = answers.map(|name| format!("{name} (model)"));
    unique(answers.chain(verdicts.map(|name| format!("{name} (judge)"))))
}

/// Mean cost per case, if recorded.
fn costs(views: &[View<'_>]) -> Vec<Fact> {
    let rows: Vec<CostRow> = views.iter().flat_map(|view| view.run.costs()).cloned().collect();
    let means = [("Answers", MeanCost::of_answers(&rows)), ("Judge", MeanCost::of_judges(&rows))];
    let known = means.into_iter().filter_map(|(name, mean)| Some((name, mean?)));
    known.map(|(name, mean)| (name, format!("{mean}; mean of {} cases", mean.cases))).collect()
}

/// Warns that a local judge may be unreliable.
fn judge_note(judge: &str) -> Option<String> {
    let name = judge.strip_prefix("local:")?;
    Some(format!(
        "The judge was local:{name}, a model that ran locally. How well it judges is not known: check a sample of its verdicts \
         by hand before you rest anything on them. Verdicts of small judges are no evidence."
    ))
}
