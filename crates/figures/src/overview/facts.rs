//! Facts of a run as names and values: model, data, settings, machine, costs.

use palimpsest_analysis::lens::{AnalysedRun, Lens, LensError, Study};
use palimpsest_analysis::results::labels::label_agreement;
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::condition::label;
use palimpsest_run::runs::cost::{CostRow, MeanCost};
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::labels::label_rows;

/// Name and value.
type Fact = (&'static str, String);

/// Facts of the header; absent ones are omitted.
pub(super) fn of_run(study: &Study, judge: Option<&str>) -> Result<Vec<Fact>, LensError> {
    let run = &study.conditions[0].run;
    let lens = study.measured().map(|(_, lens)| lens).next();
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
    let conditions = study.conditions.iter().filter(|_| study.selection.several);
    let conditions = conditions.map(|one| label(&one.name).to_owned());
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
        ("Conditions", joined(conditions.collect())),
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
        ("Parameters refused", joined(refused(study))),
        ("Seed", text("seed")),
        ("Prompts", listed(&[("prompts", "SHA-256 {}")])),
        ("Judge", Some(judge.unwrap_or("none yet").to_owned())),
        ("Machine", joined(machine.chain(threads).collect())),
        ("Attention by", attention_by(run)),
        ("palimpsest", text("version")),
    ];
    let known = facts.into_iter().filter_map(|(name, value)| Some((name, value?)));
    Ok(known.chain(labels_checked(run)?).collect())
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
fn refused(study: &Study) -> Vec<String> {
    let answers = study.conditions.iter().flat_map(|one| one.run.answers());
    let answers = answers.flat_map(|row| &row.refused_parameters).map(|name| format!("{name} (model)"));
    let verdicts = study.conditions.iter().filter_map(|one| one.verdicts());
    let verdicts = verdicts.flat_map(|judged| judged.rows().collect::<Vec<_>>());
    let verdicts = verdicts.flat_map(|row| &row.refused_parameters).map(|name| format!("{name} (judge)"));
    unique(answers.chain(verdicts))
}

/// Mean cost per case, if recorded.
pub(super) fn costs(study: &Study) -> Vec<Fact> {
    let rows: Vec<CostRow> = study.conditions.iter().flat_map(|one| one.run.costs()).cloned().collect();
    let means = [("Answers", MeanCost::of_answers(&rows)), ("Judge", MeanCost::of_judges(&rows))];
    let known = means.into_iter().filter_map(|(name, mean)| Some((name, mean?)));
    known.map(|(name, mean)| (name, format!("{mean}; mean of {} cases", mean.cases))).collect()
}
