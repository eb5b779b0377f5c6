//! Estimates the hours of a run on a card and of a model that need not be present, from the data's lengths, the model's config and the
//! card's published rates ([`crate::cards`]). Fetches, loads and measures nothing. Without the model's tokenizer, counts o200k_base tokens.

use super::sample::{
    Sampled, SampledContext, asked_of, at_least_plain, each_sampled, has_own_prompts, store_bytes,
};
use crate::cards::{CaseShape, Hours, NamedCard, Recording, fewest_cards};
use crate::models::{ModelStore, description};
use crate::progress::{grouped, note};
use crate::runs::condition::Condition;
use crate::runs::context_budget::{Cut, cut_prompts, cut_to_budget};
use crate::runs::model_subject::{row_spans, shared_tokens};
use crate::runs::setup::{OpenedData, RunSpec, WrongUsage, choose, fits, observed};
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::engine::memory_plan::{Branches, MemoryRequest, gigabytes};
use palimpsest_core::engine::{DeviceName, TextSide};
use palimpsest_core::model::{ModelFiles, ModelKind};
use palimpsest_core::span::Span;
use palimpsest_core::text::{ChatTemplate, CountTokens, Prompt, ThinkingMode};
use palimpsest_data::benchmarks::{Context, PAPER_ENCODING, QUERY, Retriever, row_roles};
use palimpsest_data::case::Case;
use palimpsest_data::prompt::{BytePairEncoding, PromptBuilder};

enum Reader {
    Model(Box<TextSide>),
    Encoding(Box<BytePairEncoding>),
}

impl Reader {
    fn open(model: &str) -> anyhow::Result<Self> {
        let files = match model.ends_with(".json") {
            true => None,
            false => ModelStore::open()?.locate(model)?,
        };
        Ok(match files.filter(has_tokenizer) {
            Some(files) => Reader::Model(Box::new(TextSide::open(&files)?)),
            None => Reader::Encoding(Box::new(BytePairEncoding::named(PAPER_ENCODING)?)),
        })
    }

    fn counter(&self) -> &dyn CountTokens {
        match self {
            Reader::Model(side) => &side.tokenizer,
            Reader::Encoding(encoding) => &**encoding,
        }
    }

    fn lengths(
        &self,
        builder: &PromptBuilder,
        case: &Case,
        cut: Cut,
        (asked, roles): (&[&str], &[&str]),
    ) -> anyhow::Result<Vec<Lengths>> {
        let mut all = Vec::new();
        match self {
            Reader::Model(side) => {
                for part in cut_to_budget(builder, &side.tokenizer, case, cut)? {
                    let mut lengths = Lengths::after(shared_tokens(&part.prompts, roles));
                    for prompt in asked_of(case, &part, asked) {
                        let rows = row_spans(prompt, roles);
                        let tokens = rows.iter().map(Span::len).sum();
                        let spans = prompt.spans.len() + prompt.overlays.len();
                        lengths.push(prompt.tokens.len() - lengths.shared, tokens, rows.len(), spans);
                    }
                    all.push(lengths);
                }
            }
            Reader::Encoding(encoding) => {
                let is_row = |span: &&Span| {
                    span.role.as_deref().is_some_and(|role| role == QUERY || roles.contains(&role))
                };
                for part in cut_prompts(builder, &**encoding, case, cut)? {
                    let common = common_bytes(&part.prompts);
                    let shared = part.prompts.first().and_then(|prompt| prompt.text.get(..common));
                    let mut lengths = Lengths::after(encoding.count(shared.unwrap_or_default())?);
                    for prompt in asked_of(case, &part, asked) {
                        let count = |range| encoding.count(prompt.text.get(range).unwrap_or_default());
                        let own = count(common..prompt.text.len())?;
                        let spans = || prompt.spans.iter().chain(&prompt.overlays);
                        let (mut tokens, mut rows) = (0, 0);
                        for span in spans().filter(is_row) {
                            tokens += count(span.start..span.end)?;
                            rows += 1;
                        }
                        lengths.push(own, tokens, rows, spans().count());
                    }
                    all.push(lengths);
                }
            }
        }
        all.retain(|lengths| !lengths.own.is_empty());
        Ok(all)
    }
}

fn has_tokenizer(files: &ModelFiles) -> bool {
    match &files.kind {
        ModelKind::Gguf(_) => true,
        ModelKind::Folder(folder) => folder.join("tokenizer.json").is_file(),
    }
}

/// Token counts of a context and its questions. Evidence rows are shared by all prompts and recorded once; the maximum counts.
struct Lengths {
    shared: usize,
    own: Vec<usize>,
    recording: Recording,
    row_spans: usize,
}

impl Lengths {
    fn after(shared: usize) -> Self {
        Lengths { shared, own: Vec::new(), recording: Recording { rows: 0, spans: 0 }, row_spans: 0 }
    }

    fn push(&mut self, own: usize, rows: usize, row_spans: usize, spans: usize) {
        self.own.push(own);
        self.recording.rows = self.recording.rows.max(rows);
        self.recording.spans = self.recording.spans.max(spans);
        self.row_spans = self.row_spans.max(row_spans);
    }
}

pub(super) fn text(job: &RunSpec, card: NamedCard) -> anyhow::Result<String> {
    if job.is_endpoint() {
        let why = format!("--card is for local models, and {} is an endpoint; drop it", job.model);
        return Err(WrongUsage(why).into());
    }
    let (name, description, _) = description(&job.model)?;
    let spec = &description.spec;
    let OpenedData { dataset, all, limits: asked, .. } = job.open()?;
    let benchmark = dataset.benchmark();
    let roles = row_roles(benchmark);
    let plan = job.plan(&dataset, all)?;
    let reader = Reader::open(&job.model)?;
    let thinking = job.thinking.local();
    let (template, thought) = match &reader {
        Reader::Model(side) => {
            let (template, thoughts) = side.template.with_thinking(thinking.mode, thinking.effort)?;
            (template, if thoughts.is_some_and(|thoughts| thoughts.on) { thinking.max } else { 0 })
        }
        // Without the template it is unknown whether the model thinks by default.
        Reader::Encoding(_) => {
            let on = job.thinking.thinking == ThinkingMode::On;
            (ChatTemplate::plain(None)?, if on { thinking.max } else { 0 })
        }
    };
    let context = job.context.unwrap_or(spec.max_positions);
    if context > spec.max_positions && !job.allow_longer {
        note(format_args!(
            "note: {} tokens are more than the {} that {name} was made for; the run takes them with --allow-longer only, and `palimpsest \
             model extend` makes a folder with its makers' scaling",
            grouped(context as u64),
            grouped(spec.max_positions as u64)
        ));
    }
    let most_new = asked.max_new_tokens.saturating_add(thought);
    asked.check_room(context, thought, 0)?;
    let by = asked.truncation;
    let cut = Cut { budget: by.budget(context, most_new), by, seed: job.seed };
    let builder = PromptBuilder::new(job.templates(benchmark)?, template)
        .numbering(job.session_numbers)
        .reading(job.special_tokens);
    let conditions = at_least_plain(choose(
        benchmark,
        &job.conditions,
        (&job.knockouts, job.repeat),
        &job.memory,
        || fits(&dataset, &builder, reader.counter(), cut.budget),
    )?);
    let is_dense = |one: &&Condition| matches!(one.context, Context::Retrieved { by: Retriever::Dense, .. });
    if let Some(dense) = conditions.iter().find(is_dense) {
        let why = format!(
            "the condition {} retrieves by embeddings, whose model an estimate for a card neither fetches nor runs; name others with \
             --conditions",
            dense.name
        );
        return Err(WrongUsage(why).into());
    }
    let mut lengths: Vec<Lengths> = Vec::new();
    let cases = each_sampled(job, &dataset, &plan, (&conditions, has_own_prompts), |case, asked| {
        lengths.extend(reader.lengths(&builder, case, cut, (asked, &roles))?);
        Ok(())
    })?;

    // Uses as few cards as hold the model, as a run does.
    let sampled = Sampled::of(job, &plan, &conditions, cases);
    let Sampled { repeat, batch, .. } = sampled;
    let usual = DeviceName::Cuda(0).default_dtype();
    let mut request = MemoryRequest {
        branches: Branches::for_answers(batch, most_new),
        observed: observed(&plan, benchmark, batch, most_new),
        ..job.loaded.request(context, usual, Vec::new())?
    };
    if !job.knockouts.is_empty() {
        request.kernel = AttentionKernel::Products;
    }
    let (cards, memory_plan) = fewest_cards(&description, &mut request, card.usable());
    request.check_formats()?;

    let (mut contexts, mut shapes) = (Vec::new(), Vec::new());
    for Lengths { shared, own, recording, row_spans } in lengths {
        let of = |own: &usize| store_bytes(spec, (row_spans + 2, recording.spans), shared + own + most_new);
        let bytes = own.iter().map(of).sum();
        let asked = own.repeat(repeat);
        let recording = if job.no_attention { Recording { rows: 0, spans: 0 } } else { recording };
        shapes.push((CaseShape { shared, own: asked, answer: most_new, recording }, sampled.scale));
        contexts.push(SampledContext { shared, own, bytes });
    }
    let hours = Hours::new(spec, &request, card, &shapes);
    let counted = match reader {
        Reader::Model(_) => String::new(),
        Reader::Encoding(encoding) => {
            format!("; tokens of {}, since the tokenizer of {name} is not here", encoding.name())
        }
    };
    let held = match memory_plan.fits(&vec![Some(card.usable()); cards]) {
        Some(true) if cards == 1 => "one card holds it".to_owned(),
        Some(true) => format!("{cards} cards hold it, with the layers split between them"),
        _ => format!("more than {cards} cards hold; give a shorter --context or a smaller model"),
    };
    let asked = sampled.asked();
    Ok(format!(
        "{asked} by {name} ({}, {}): nothing was run or fetched\n{}memory      {} of {} a card: {held}\n\n{}",
        card.title,
        format!("{:?}", request.dtype).to_lowercase(),
        sampled.text(&contexts, most_new, &counted, ""),
        gigabytes(memory_plan.total()),
        gigabytes(card.usable()),
        hours.text(&asked, cards).trim_end(),
    ))
}

/// Length of the common prefix of all prompts, before the first query, bytes.
fn common_bytes(prompts: &[Prompt]) -> usize {
    let Some((first, others)) = prompts.split_first() else { return 0 };
    let query = first.spans.iter().find(|span| span.role.as_deref() == Some(QUERY));
    let mut common = query.map_or(first.text.len(), |query| query.start);
    for other in others {
        let same = first.text.bytes().zip(other.text.bytes()).take_while(|(a, b)| a == b).count();
        common = common.min(same);
    }
    first.text.floor_char_boundary(common)
}
