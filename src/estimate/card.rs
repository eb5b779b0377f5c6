//! The hours of a run on a card that is not here, of a model that is not here.
//!
//! The data's own lengths, the model's config, the card's published rates ([`crate::cards`]). Nothing is fetched,
//! loaded or measured. Where the model's tokenizer is not here, tokens are those of o200k_base.

use super::sample::{
    Sampled, SampledContext, asked_of, at_least_plain, each_sampled, has_own_prompts, store_bytes,
};
use crate::benchmarks::{Context, PAPER_ENCODING, QUERY, Retriever, row_roles};
use crate::cards::{CaseShape, Hours, NamedCard, Recording, fewest_cards};
use crate::data::Case;
use crate::models::{ModelStore, description};
use crate::progress::{grouped, note};
use crate::prompt::{BytePairEncoding, PromptBuilder};
use crate::run::condition::Condition;
use crate::run::context_budget::{Cut, cut_prompts, cut_to_budget};
use crate::run::model_subject::{row_spans, shared_tokens};
use crate::run::setup::{OpenedData, RunSpec, WrongUsage, choose, fits, observed};
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::engine::memory_plan::{Branches, MemoryRequest, gigabytes};
use palimpsest_core::engine::{self, DeviceName, TextSide};
use palimpsest_core::model::{ModelFiles, ModelKind};
use palimpsest_core::span::Span;
use palimpsest_core::text::{CharSpan, ChatTemplate, CountTokens, Prompt, TextError, ThinkingMode};

enum Reader {
    /// The model's own tokenizer and chat template.
    Model(Box<TextSide>),
    /// An encoding in its place, without a chat template.
    Encoding(Box<BytePairEncoding>),
}

impl Reader {
    /// The model's own where its files are here.
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
}

fn has_tokenizer(files: &ModelFiles) -> bool {
    match &files.kind {
        ModelKind::Gguf(_) => true,
        ModelKind::Folder(folder) => folder.join("tokenizer.json").is_file(),
    }
}

struct Lengths {
    shared: usize,
    own: Vec<usize>,
    recording: Recording,
    row_spans: usize,
}

/// What a run will take on a card.
pub(super) fn text(job: &RunSpec, card: NamedCard) -> anyhow::Result<String> {
    if job.is_endpoint() {
        let why = format!("--card is for local models, and {} is an endpoint; drop it", job.model);
        return Err(WrongUsage(why).into());
    }
    let (name, description, _) = description(&job.model)?;
    let (s, spec) = (job, &description.spec);
    let OpenedData { dataset, all, limits: asked, .. } = job.open()?;
    let benchmark = dataset.benchmark();
    let roles = row_roles(benchmark);
    let plan = job.plan(&dataset, all)?;
    let reader = Reader::open(&job.model)?;
    let (template, thought) = match &reader {
        Reader::Model(side) => {
            let options = s.thinking.local();
            let (template, thoughts) = side.template.with_thinking(options.mode, options.effort)?;
            (template, if thoughts.is_some_and(|thoughts| thoughts.on) { options.max } else { 0 })
        }
        // Whether the model thinks of itself is not known without its template.
        Reader::Encoding(_) => {
            let on = s.thinking.thinking == ThinkingMode::On;
            (ChatTemplate::plain(None)?, if on { s.thinking.local().max } else { 0 })
        }
    };
    let context = s.context.unwrap_or(spec.max_positions);
    if context > spec.max_positions && !s.allow_longer {
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
    let cut = Cut { budget: by.budget(context, most_new), by, seed: s.seed };
    let builder = PromptBuilder::new(s.templates(benchmark)?, template)
        .numbering(s.session_numbers)
        .reading(s.special_tokens);
    let conditions =
        at_least_plain(choose(benchmark, &s.conditions, (&s.knockouts, s.repeat), &s.memory, || {
            fits(&dataset, &builder, reader.counter(), cut.budget)
        })?);
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
        lengths.extend(read(&reader, &builder, case, cut, (asked, &roles))?);
        Ok(())
    })?;

    // As a run opens the model, on as many of the cards as hold it.
    let sampled = Sampled::of(job, &plan, &conditions, cases);
    let Sampled { repeat, batch, .. } = sampled;
    let dtype = s.loaded.in_dtype.dtype()?.unwrap_or_else(|| DeviceName::Cuda(0).default_dtype());
    let kernel = match s.knockouts.is_empty() {
        true => s.loaded.on.attention_kernel,
        false => AttentionKernel::Products,
    };
    let mut request = MemoryRequest {
        context,
        chunk: engine::DEFAULT_CHUNK,
        logits: 1,
        dtype,
        cache: s.loaded.in_dtype.cache()?,
        kernel,
        devices: Vec::new(),
        branches: Branches::for_answers(batch, most_new),
        observed: observed(&plan, benchmark, batch, most_new),
        kept: s.loaded.weights.into(),
        beside: 0,
    };
    let (cards, memory_plan) = fewest_cards(&description, &mut request, card.usable());
    request.check_formats()?;

    let (mut contexts, mut shapes) = (Vec::new(), Vec::new());
    for Lengths { shared, own, recording, row_spans } in lengths {
        let of = |own: &usize| store_bytes(spec, (row_spans + 2, recording.spans), shared + own + most_new);
        let bytes = own.iter().map(of).sum();
        let asked = own.iter().copied().cycle().take(own.len() * repeat).collect();
        let recording = if s.no_attention { Recording { rows: 0, spans: 0 } } else { recording };
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
    let mut text = format!(
        "{} by {name} ({}, {}): nothing was run or fetched\n{}",
        sampled.asked(),
        card.title,
        format!("{dtype:?}").to_lowercase(),
        sampled.text(&contexts, most_new, &counted, ""),
    );
    let free = vec![Some(card.usable()); cards];
    let held = match memory_plan.fits(&free) {
        Some(true) if cards == 1 => "one card holds it".to_owned(),
        Some(true) => format!("{cards} cards hold it, with the layers split between them"),
        _ => format!("more than {cards} cards hold; give a shorter --context or a smaller model"),
    };
    text += &format!(
        "memory      {} of {} a card: {held}\n",
        gigabytes(memory_plan.total()),
        gigabytes(card.usable())
    );
    text += "\n";
    text += hours.text(&sampled.asked(), cards).trim_end();
    Ok(text)
}

fn read(
    reader: &Reader,
    builder: &PromptBuilder,
    case: &Case,
    cut: Cut,
    (asked, roles): (&[&str], &[&str]),
) -> anyhow::Result<Vec<Lengths>> {
    let mut all = Vec::new();
    match reader {
        Reader::Model(side) => {
            for part in cut_to_budget(builder, &side.tokenizer, case, cut)? {
                let shared = shared_tokens(&part.prompts, roles);
                let (mut own, mut recorded) = (Vec::new(), (0, 0, 0));
                for prompt in asked_of(case, &part, asked) {
                    own.push(prompt.tokens.len() - shared);
                    let rows = row_spans(prompt, roles);
                    let keys = prompt.spans.len() + prompt.overlays.len();
                    recorded = more(recorded, (rows.iter().map(Span::len).sum(), rows.len(), keys));
                }
                all.extend(Lengths::of(shared, own, recorded));
            }
        }
        Reader::Encoding(encoding) => {
            for part in cut_prompts(builder, &**encoding, case, cut)? {
                let common = common_bytes(&part.prompts);
                let shared =
                    part.prompts.first().and_then(|prompt| prompt.text.get(..common)).unwrap_or_default();
                let shared = encoding.count(shared)?;
                let (mut own, mut recorded) = (Vec::new(), (0, 0, 0));
                for prompt in asked_of(case, &part, asked) {
                    own.push(encoding.count(prompt.text.get(common..).unwrap_or_default())?);
                    let is_row = |span: &&CharSpan| {
                        span.role.as_deref().is_some_and(|role| role == QUERY || roles.contains(&role))
                    };
                    let spans = || prompt.spans.iter().chain(&prompt.overlays);
                    let tokens = spans()
                        .filter(is_row)
                        .map(|span| encoding.count(prompt.text.get(span.start..span.end).unwrap_or_default()))
                        .sum::<Result<usize, TextError>>()?;
                    recorded = more(recorded, (tokens, spans().filter(is_row).count(), spans().count()));
                }
                all.extend(Lengths::of(shared, own, recorded));
            }
        }
    }
    Ok(all)
}

impl Lengths {
    /// Nothing where no question of the part is asked.
    fn of(shared: usize, own: Vec<usize>, (rows, row_spans, spans): (usize, usize, usize)) -> Option<Self> {
        (!own.is_empty()).then_some(Lengths { shared, own, recording: Recording { rows, spans }, row_spans })
    }
}

/// The larger of each: the rows of evidence are the same of all prompts of a case, and are recorded once.
fn more(a: (usize, usize, usize), b: (usize, usize, usize)) -> (usize, usize, usize) {
    (a.0.max(b.0), a.1.max(b.1), a.2.max(b.2))
}

/// Bytes that all prompts begin with, up to the first query.
fn common_bytes(prompts: &[Prompt]) -> usize {
    let Some((first, others)) = prompts.split_first() else { return 0 };
    let query = first.spans.iter().find(|span| span.role.as_deref() == Some(QUERY));
    let mut common = query.map_or(first.text.len(), |query| query.start);
    for other in others {
        let same = first.text.bytes().zip(other.text.bytes()).take_while(|(a, b)| a == b).count();
        common = common.min(same);
    }
    while !first.text.is_char_boundary(common) {
        common -= 1;
    }
    common
}
