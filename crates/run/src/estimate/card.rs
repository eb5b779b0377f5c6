//! Estimates the hours of a run on a card and of a model that need not be present, from the data's lengths, the model's config and the
//! card's published rates ([`crate::cards`]). Fetches, loads and measures nothing. Without the model's tokenizer, counts o200k_base tokens.

use super::sample::{
    Sampled, SampledContext, Sizes, asked_of, at_least_plain, contexts_of, each_sampled, has_own_prompts,
};
use crate::cards::{CaseShape, Hours, NamedCard, Recording, fewest_cards};
use crate::models::{ModelStore, description};
use crate::progress::{grouped, note};
use crate::runs::context_budget::{Cut, cut_prompts, cut_to_budget};
use crate::runs::setup::{OpenedData, RunSpec, check_evictions, observed, wrong};
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::engine::memory_plan::{Branches, MemoryRequest, ObservedSpans, gigabytes};
use palimpsest_core::engine::{DeviceName, TextSide};
use palimpsest_core::model::{ModelFiles, ModelKind};
use palimpsest_core::span::Span;
use palimpsest_core::text::{ChatTemplate, CountTokens, Prompt, ThinkingMode};
use palimpsest_data::benchmarks::{PAPER_ENCODING, QUERY, Retriever, row_roles};
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

    /// Contexts of a case with asked prompts.
    fn contexts(
        &self,
        builder: &PromptBuilder,
        case: &Case,
        cut: Cut,
        (asked, roles): (&[&str], &[&str]),
        sizes: Sizes<'_>,
    ) -> anyhow::Result<Vec<SampledContext>> {
        let encoding = match self {
            Reader::Model(side) => {
                let parts = cut_to_budget(builder, &side.tokenizer, case, cut)?;
                return Ok(contexts_of(case, &parts, (asked, roles), sizes));
            }
            Reader::Encoding(encoding) => encoding,
        };
        let is_row =
            |span: &&Span| span.role.as_deref().is_some_and(|role| role == QUERY || roles.contains(&role));
        let mut all = Vec::new();
        for part in cut_prompts(builder, &**encoding, case, cut)? {
            let common = common_bytes(&part.prompts);
            let shared = part.prompts.first().and_then(|prompt| prompt.text.get(..common));
            let shared = encoding.count(shared.unwrap_or_default())?;
            let mut context = SampledContext { shared, ..SampledContext::default() };
            for prompt in asked_of(case, &part, asked) {
                let count = |range| encoding.count(prompt.text.get(range).unwrap_or_default());
                let own = count(common..prompt.text.len())?;
                let spans = || prompt.spans.iter().chain(&prompt.overlays);
                let mut rows = (0, 0);
                for span in spans().filter(is_row) {
                    rows = (rows.0 + 1, rows.1 + count(span.start..span.end)?);
                }
                context.push(own, rows, spans().count(), sizes);
            }
            all.push(context);
        }
        all.retain(|context| !context.own.is_empty());
        Ok(all)
    }
}

fn has_tokenizer(files: &ModelFiles) -> bool {
    match &files.kind {
        ModelKind::Gguf(_) => true,
        ModelKind::Folder(folder) => folder.join("tokenizer.json").is_file(),
    }
}

pub(super) fn text(job: &RunSpec, card: NamedCard) -> anyhow::Result<String> {
    if job.is_endpoint() {
        return wrong(format!("--card is for local models, and {} is an endpoint; drop it", job.model));
    }
    let (name, description, _) = description(&job.model)?;
    let spec = &description.spec;
    check_evictions(&job.evictions, &name, &spec.layer_kinds())?;
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
    let builder = job.builder(job.templates(benchmark)?, template);
    let conditions = at_least_plain(job.choose(&dataset, &builder, Some((reader.counter(), cut.budget)))?);
    if let Some(dense) = conditions.iter().find(|one| one.retrieves_by(Retriever::Dense)) {
        return wrong(format!(
            "the condition {} retrieves by embeddings, whose model an estimate for a card neither fetches nor runs; name others with \
             --conditions",
            dense.name
        ));
    }
    let mut contexts: Vec<SampledContext> = Vec::new();
    let cases = each_sampled(job, &dataset, &plan, (&conditions, has_own_prompts), |case, asked| {
        contexts.extend(reader.contexts(&builder, case, cut, (asked, &roles), Sizes { spec, most_new })?);
        Ok(())
    })?;

    // Uses as few cards as hold the model, as a run does.
    let sampled = Sampled::of(job, &plan, &conditions, cases);
    let Sampled { repeat, batch, .. } = sampled;
    let usual = DeviceName::Cuda(0).default_dtype();
    let mut request = MemoryRequest {
        branches: Branches::for_answers(batch, most_new),
        observed: ObservedSpans { selected: job.selected, ..observed(&plan, benchmark, batch, most_new) },
        keeps: job.keeps(batch),
        ..job.loaded.request(context, usual, Vec::new())?
    };
    if job.hidings() > 1 {
        request.kernel = AttentionKernel::Products;
    }
    let (cards, memory_plan) = fewest_cards(&description, &mut request, card.usable());
    request.check_formats()?;

    let shape = |context: &SampledContext| {
        let recording = if job.no_attention { Recording::default() } else { context.recording };
        let own = context.own.repeat(repeat);
        (CaseShape { shared: context.shared, own, answer: most_new, recording }, sampled.scale)
    };
    let shapes: Vec<_> = contexts.iter().map(shape).collect();
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
