//! The part of `palimpsest run` that is an endpoint's: what counts its tokens, how its histories are cut, whether its attention can be
//! recorded.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use super::conditions::{check_templates, conditions, fits};
use super::run::{Job, Opened};
use super::settings::{Asked, Settings};
use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::{Benchmark, GENERATION, row_roles, wants_verdict_row};
use crate::chat::ChatModel;
use crate::chat::endpoint::{Endpoint, Patience, ServerCard, ServerModel};
use crate::data::Case;
use crate::models::TokenCounter;
use crate::progress::note;
use crate::prompt::PromptBuilder;
use crate::run::condition::Condition;
use crate::run::context_budget::{BudgetedCase, Cut, TEMPLATE_RESERVE, cut_messages, cut_prompts, part_of};
use crate::run::header::{ContextPolicy, Identity, Named};
use crate::run::model_subject::{ModelSubject, SubjectOptions};
use crate::run::runner::Summary;
use crate::run::subject::{ChatPrompt, ChatSubject};
use palimpsest_core::digest::sha256;
use palimpsest_core::engine::ModelText;
use palimpsest_core::text::{
    BorderRule, CharsPerToken, ChatTemplate, CountTokens, Message, SpecialTokens, TextError, ThinkingMode,
};

/// What counts an endpoint's tokens.
pub(super) struct Counter {
    /// The tokeniser; absent for a stated bound.
    named: Option<Named>,
    pub(super) tokens: Box<dyn CountTokens>,
}

impl Job {
    /// [`conditions`] of this job, put to an endpoint. One whose histories nobody counts is sent them whole.
    pub(super) fn endpoint_conditions(
        &self,
        dataset: &Dataset,
        builder: &PromptBuilder,
        (counter, asked): (Option<&Counter>, Asked),
    ) -> anyhow::Result<Vec<Condition>> {
        let s = &self.settings;
        let reserve = TEMPLATE_RESERVE.saturating_sub(asked.truncation.reserved());
        let budget = self.cut_of_endpoint(asked).budget.saturating_sub(reserve);
        conditions(dataset.benchmark(), &s.conditions, (&[], s.repeat), &s.memory, || match counter {
            None => Ok(true),
            Some(Counter { tokens, .. }) => fits(dataset, builder, &**tokens, budget),
        })
    }

    /// What counts an endpoint's tokens, where its histories are to be cut.
    pub(super) fn counter(&self) -> anyhow::Result<Option<Counter>> {
        let s = &self.settings;
        if let Some(name) = &s.tokenizer {
            let TokenCounter { name, digest, tokens } = TokenCounter::open(name)?;
            return Ok(Some(Counter { named: Some(Named { name, digest }), tokens }));
        }
        let bound = s.chars_per_token.and_then(CharsPerToken::new);
        Ok(bound.map(|bound| Counter { named: None, tokens: Box::new(bound) }))
    }

    /// Most tokens that an endpoint generates for one answer: a thought's, where it was given a limit for them, and the answer's.
    pub(super) fn generated_by_endpoint(&self, asked: Asked) -> usize {
        asked.max_new_tokens.saturating_add(self.settings.thinking.endpoint().max_tokens)
    }

    /// How an endpoint's histories are cut where they are counted.
    pub(super) fn cut_of_endpoint(&self, asked: Asked) -> Cut {
        let Settings { context, seed, .. } = self.settings;
        let by = asked.truncation;
        let budget = by.budget(context.unwrap_or(usize::MAX), self.generated_by_endpoint(asked));
        Cut { budget, by, seed }
    }

    fn context_of_endpoint(&self, counter: Option<&Counter>, asked: Asked) -> ContextPolicy {
        let s = &self.settings;
        let by = asked.truncation;
        let policy = if counter.is_some() { by.policy() } else { "full" };
        ContextPolicy {
            tokens: s.context.map(|context| by.context(context)),
            policy: policy.to_owned(),
            tokenizer: counter.and_then(|counter| counter.named.clone()),
            chars_per_token: s.chars_per_token,
            reserved: counter.map(|_| TEMPLATE_RESERVE.max(by.reserved())),
            numbers: s.session_numbers.into(),
        }
    }

    /// Does what is not done yet, at an endpoint.
    pub(super) fn run_endpoint(&self) -> anyhow::Result<Summary> {
        let s = &self.settings;
        let Opened { dataset, named, all, first, asked } = self.open()?;
        let plan = self.plan(&dataset, all)?;
        let templates = self.templates(dataset.benchmark())?;
        let prompts = templates.digest().to_owned();
        let counter = self.counter()?;
        let patience = Patience { timeout: Duration::from_secs(600), ..Patience::default() };
        let mut endpoint = Endpoint::from_address(&self.model, patience)?.thinking(s.thinking.endpoint());
        endpoint.check_reachable()?;
        let name = endpoint.name();
        let own = self.measuring_server(&endpoint, dataset.benchmark())?;
        let (template, prompts) = match &own {
            // A server of palimpsest is sent text, with spans, as a local model is.
            Some((_, template)) => {
                (template.clone(), sha256(format!("{prompts}\n{}", template.source()).as_bytes()))
            }
            // The endpoint applies its own chat template; only the messages go out.
            None => (ChatTemplate::plain(None)?, prompts),
        };
        // A server that applies its template itself knows what ends a turn in it.
        let stops = s.stop_strings(own.as_ref().map(|_| template.stop_strings()).unwrap_or_default());
        let builder = PromptBuilder::new(templates, template).numbering(s.session_numbers.into());
        check_templates(&builder, first.as_ref())?;
        let cut = self.cut_of_endpoint(asked);
        let conditions = self.endpoint_conditions(&dataset, &builder, (counter.as_ref(), asked))?;
        let counted = match counter.as_ref().is_some_and(|counter| counter.named.is_some()) {
            true => BorderRule::FirstCharacter,
            false => BorderRule::default(),
        };
        let systems = self.start_systems(&conditions)?;
        let identity = Identity {
            benchmark: dataset.benchmark().name.to_owned(),
            dataset: named,
            model: Named { digest: sha256(&name), name },
            dtype: own.as_ref().map(|(server, _)| server.dtype.clone()),
            prompts: Some(prompts),
            sampling: Some(self.sampling(asked)),
            context: self.context_of_endpoint(counter.as_ref(), asked),
            seed: s.seed,
            only: s.only.clone(),
            limit: s.limit,
            attention: own.is_some(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sample: self.sample(),
            memory: systems.identities.clone(),
            conditions,
            limit_probes: s.limit_probes,
            thinking: s.thinking.endpoint_policy(),
            stop: stops.clone(),
            special_tokens: SpecialTokens::default(),
            borders: own.as_ref().map_or(counted, |(server, _)| server.borders),
        };
        let calls = self.parallel.unwrap_or(1);
        if let Some((card, template)) = own {
            let text = ModelText {
                name: endpoint.model().to_owned(),
                tokenizer: Arc::new(endpoint.tokenizer()?),
                template,
                thoughts: None,
                max_thinking: 0,
                stop: Vec::new(),
                context: card.context,
            };
            let tokenizer = Arc::clone(&text.tokenizer);
            let prepare = move |case: &Case| {
                let parts = match &counter {
                    Some(Counter { tokens, .. }) => cut_prompts(&builder, &**tokens, case, cut)?,
                    None => vec![BudgetedCase::whole(case, builder.build_all(case, &case.history)?)],
                };
                let encoded = parts.into_iter().map(|part| part.map(|prompt| prompt.encode(&tokenizer)));
                Ok(encoded.collect::<Result<_, TextError>>()?)
            };
            let options = SubjectOptions {
                sampling: self.sampling(asked),
                attention: true,
                answer_rows: true,
                share_prefix: true,
            };
            let (roles, stop) = (row_roles(dataset.benchmark()), super::interrupt::flag("answer")?);
            let mut model = ServerModel::new(endpoint, card, calls);
            let subject = ModelSubject::new(&mut model, &text, Arc::new(prepare), roles, options, &stop)
                .stopping_at(stops);
            return self
                .answer(identity, self.machine(&self.model), (&dataset, plan), systems, &mut { subject });
        }
        endpoint = endpoint.stopping_at(stops);
        // Probes that are shown the same history share the cutting of it.
        let mut held: Option<(Case, Vec<BudgetedCase<Vec<Message>>>)> = None;
        let mut lines = vec![endpoint; calls];
        let lines = lines.iter_mut().map(|line| line as &mut (dyn ChatModel + Send)).collect();
        let mut subject =
            ChatSubject::new(lines, self.sampling(asked), |case, probe| -> anyhow::Result<ChatPrompt> {
                let Some(Counter { tokens, .. }) = &counter else {
                    let prompt = builder.build(&case.history, &case.evidence, probe);
                    return Ok(ChatPrompt { messages: prompt?.messages, ..ChatPrompt::default() });
                };
                let parts = match held.take() {
                    Some((other, parts)) if other == *case => parts,
                    _ => cut_messages(&builder, &**tokens, case, cut)?,
                };
                let at = case.probes.iter().position(|other| other.id == probe.id);
                let shown = at.and_then(|at| part_of(&parts, at)).map(|(part, messages)| ChatPrompt {
                    messages: messages.clone(),
                    dropped: part.dropped.clone(),
                });
                held = Some((case.clone(), parts));
                shown
                    .with_context(|| format!("This is a bug: case `{}` has no probe `{}`", case.id, probe.id))
            });
        self.answer(identity, self.machine(&self.model), (&dataset, plan), systems, &mut subject)
    }

    /// The endpoint as a server of palimpsest whose attention is to be recorded, with its chat template; `None` where it is none, or
    /// where it cannot be, which is told.
    fn measuring_server(
        &self,
        endpoint: &Endpoint,
        benchmark: &Benchmark,
    ) -> anyhow::Result<Option<(ServerCard, ChatTemplate)>> {
        if self.settings.no_attention {
            return Ok(None);
        }
        let Some(server) = endpoint.server_card()? else { return Ok(None) };
        let template = ChatTemplate::new(
            endpoint.model(),
            &server.chat_template,
            server.bos.as_deref(),
            server.eos.as_deref(),
        )?;
        let (template, thoughts) = template.with_thinking(ThinkingMode::Auto, None)?;
        let further = wants_verdict_row(benchmark) || row_roles(benchmark).contains(&GENERATION);
        let why = match (thoughts, server.has_delta, further) {
            (Some(_), ..) => "the model can think, and a server tells no attention of text after a thought",
            (_, true, _) => "the model has layers of linear attention, of which a server tells too little",
            (.., true) => {
                "the benchmark wants rows beside spans, the query and the answer, which a server cannot tell"
            }
            _ => return Ok(Some((server, template))),
        };
        note(format_args!("note: no attention is recorded: {why}; run the model itself for that"));
        Ok(None)
    }
}
