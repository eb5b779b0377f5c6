//! Setup of endpoint runs: token counter, truncation, and attention if the endpoint is a palimpsest server.

use std::sync::Arc;
use std::time::Duration;

use super::conditions::{check_templates, choose, fits};
use super::{AnswerLimits, Begin, RunSpec, machine};
use crate::chat::ChatModel;
use crate::chat::endpoint::{Endpoint, Patience, ServerCard, ServerModel};
use crate::models::TokenCounter;
use crate::progress::note;
use crate::runs::condition::Condition;
use crate::runs::context_budget::{BudgetedCase, Cut, TEMPLATE_RESERVE, cut_messages, cut_prompts, part_of};
use crate::runs::header::{ContextPolicy, Identity, NameAndDigest};
use crate::runs::model_subject::{ModelSubject, SubjectOptions};
use crate::runs::runner::Summary;
use crate::runs::subject::{ChatPrompt, ChatSubject};
use palimpsest_core::digest::sha256;
use palimpsest_core::engine::ModelText;
use palimpsest_core::text::{
    BorderRule, CharsPerToken, ChatTemplate, CountTokens, Message, TextError, ThinkingMode,
};
use palimpsest_data::benchmarks::dataset::Dataset;
use palimpsest_data::benchmarks::{Benchmark, GENERATION, row_roles, wants_verdict_row};
use palimpsest_data::case::{Case, Probe};
use palimpsest_data::prompt::PromptBuilder;

pub struct Counter {
    /// Tokeniser; absent for a stated characters-per-token bound.
    named: Option<NameAndDigest>,
    pub tokens: Box<dyn CountTokens>,
}

impl RunSpec {
    /// Without a token counter, histories are sent whole.
    pub fn endpoint_conditions(
        &self,
        dataset: &Dataset,
        builder: &PromptBuilder,
        (counter, limits): (Option<&Counter>, AnswerLimits),
    ) -> anyhow::Result<Vec<Condition>> {
        let reserve = TEMPLATE_RESERVE.saturating_sub(limits.truncation.reserved());
        let budget = self.cut_of_endpoint(limits).budget.saturating_sub(reserve);
        choose(dataset.benchmark(), &self.conditions, (&[], self.repeat), &self.memory, || match counter {
            None => Ok(true),
            Some(Counter { tokens, .. }) => fits(dataset, builder, &**tokens, budget),
        })
    }

    pub fn counter(&self) -> anyhow::Result<Option<Counter>> {
        if let Some(name) = &self.tokenizer {
            let TokenCounter { name, digest, tokens } = TokenCounter::open(name)?;
            return Ok(Some(Counter { named: Some(NameAndDigest { name, digest }), tokens }));
        }
        let bound = self.chars_per_token.and_then(CharsPerToken::new);
        Ok(bound.map(|bound| Counter { named: None, tokens: Box::new(bound) }))
    }

    /// Maximum generated tokens per answer, including the thought.
    pub fn generated_by_endpoint(&self, limits: AnswerLimits) -> usize {
        limits.max_new_tokens.saturating_add(self.thinking.endpoint().max_tokens)
    }

    pub fn cut_of_endpoint(&self, limits: AnswerLimits) -> Cut {
        let by = limits.truncation;
        let budget = by.budget(self.context.unwrap_or(usize::MAX), self.generated_by_endpoint(limits));
        Cut { budget, by, seed: self.seed }
    }

    fn context_of_endpoint(&self, counter: Option<&Counter>, limits: AnswerLimits) -> ContextPolicy {
        let by = limits.truncation;
        let policy = if counter.is_some() { by.policy() } else { "full" };
        ContextPolicy {
            tokens: self.context.map(|context| by.context(context)),
            policy: policy.to_owned(),
            tokenizer: counter.and_then(|counter| counter.named.clone()),
            chars_per_token: self.chars_per_token,
            reserved: counter.map(|_| TEMPLATE_RESERVE.max(by.reserved())),
            numbers: self.session_numbers,
            query_time: self.query_time,
        }
    }

    pub(super) fn run_endpoint(&self, begin: &Begin<'_>) -> anyhow::Result<Summary> {
        let mut data = self.open()?;
        let (all, limits) = (std::mem::take(&mut data.all), data.limits);
        let dataset = &data.dataset;
        let plan = self.plan(dataset, all)?;
        let templates = self.templates(dataset.benchmark())?;
        let prompts = templates.digest().to_owned();
        let counter = self.counter()?;
        let patience = Patience { timeout: Duration::from_secs(600), ..Patience::default() };
        let mut endpoint = Endpoint::from_address(&self.model, patience)?.thinking(self.thinking.endpoint());
        endpoint.check_reachable()?;
        let name = endpoint.name();
        let own = self.measuring_server(&endpoint, dataset.benchmark())?;
        let (template, prompts) = match &own {
            // A palimpsest server receives rendered text with spans.
            Some((_, template)) => {
                (template.clone(), sha256(format!("{prompts}\n{}", template.source()).as_bytes()))
            }
            None => (ChatTemplate::plain(None)?, prompts),
        };
        // An endpoint that applies its own template knows its stop strings.
        let stops = self.stop_strings(own.as_ref().map(|_| template.stop_strings()).unwrap_or_default());
        let builder = PromptBuilder::new(templates, template).numbering(self.session_numbers);
        check_templates(&builder, data.first.as_ref())?;
        let cut = self.cut_of_endpoint(limits);
        let conditions = self.endpoint_conditions(dataset, &builder, (counter.as_ref(), limits))?;
        let counted = match counter.as_ref().is_some_and(|counter| counter.named.is_some()) {
            true => BorderRule::FirstCharacter,
            false => BorderRule::default(),
        };
        let stop = (begin.watch)("stopping after the answer under way")?;
        let systems = self.memory.start_systems(self.seed, begin.folder, &conditions, &stop)?;
        let identity = Identity {
            model: NameAndDigest { digest: sha256(&name), name },
            dtype: own.as_ref().map(|(server, _)| server.dtype.clone()),
            cache_dtype: own.as_ref().and_then(|(server, _)| server.cache_dtype.clone()),
            prompts: Some(prompts),
            context: self.context_of_endpoint(counter.as_ref(), limits),
            attention: own.is_some(),
            memory: systems.identities.clone(),
            thinking: self.thinking.endpoint_policy(),
            stop: stops.clone(),
            borders: own.as_ref().map_or(counted, |(server, _)| server.attention.borders),
            ..self.identity(&data, conditions)
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
                sampling: self.sampling(limits),
                attention: true,
                answer_rows: true,
                share_prefix: true,
            };
            let roles = row_roles(dataset.benchmark());
            let mut model = ServerModel::new(endpoint, card, calls);
            let subject = ModelSubject::new(&mut model, &text, Arc::new(prepare), roles, options, &stop)
                .stopping_at(stops);
            let at = (begin, &*stop, machine(&self.model));
            return self.answer(at, identity, (dataset, plan), systems, &mut { subject });
        }
        endpoint = endpoint.stopping_at(stops);
        let mut lines = vec![endpoint; calls];
        let lines = lines.iter_mut().map(|line| line as &mut (dyn ChatModel + Send)).collect();
        let cut_case = |case: &Case| match &counter {
            Some(Counter { tokens, .. }) => Ok(Some(cut_messages(&builder, &**tokens, case, cut)?)),
            None => Ok(None),
        };
        let shown = |parts: &Option<Vec<BudgetedCase<Vec<Message>>>>, case: &Case, probe: &Probe| {
            let Some(parts) = parts else {
                let prompt = builder.build(&case.history, &case.evidence, probe)?;
                return Ok(ChatPrompt { messages: prompt.messages, ..ChatPrompt::default() });
            };
            let at = case.probes.iter().position(|other| other.id == probe.id);
            let shown = at.and_then(|at| part_of(parts, at));
            let (part, messages) = shown
                .ok_or_else(|| format!("This is a bug: case `{}` has no probe `{}`", case.id, probe.id))?;
            Ok(ChatPrompt { messages: messages.clone(), dropped: part.dropped.clone() })
        };
        let mut subject = ChatSubject::new(lines, self.sampling(limits), cut_case, shown);
        self.answer((begin, &stop, machine(&self.model)), identity, (dataset, plan), systems, &mut subject)
    }

    /// Card and chat template of a palimpsest server that can record attention; otherwise tells the user why not.
    fn measuring_server(
        &self,
        endpoint: &Endpoint,
        benchmark: &Benchmark,
    ) -> anyhow::Result<Option<(ServerCard, ChatTemplate)>> {
        if self.no_attention {
            return Ok(None);
        }
        let Some(server) = endpoint.server_card()? else { return Ok(None) };
        let template = server.template(endpoint.model())?;
        let (template, thoughts) = template.with_thinking(ThinkingMode::Auto, None)?;
        let further = wants_verdict_row(benchmark) || row_roles(benchmark).contains(&GENERATION);
        let why = match (thoughts, !server.delta_layers.is_empty(), further) {
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
