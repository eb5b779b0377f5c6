//! Setup of endpoint runs: token counter, truncation, and attention if the endpoint is a palimpsest server.

use std::sync::Arc;
use std::time::Duration;

use super::conditions::check_templates;
use super::{AnswerLimits, Begin, RunSpec, machine};
use crate::chat::ChatModel;
use crate::chat::endpoint::{Endpoint, Keys, Patience, ServerCard, ServerModel};
use crate::models::TokenCounter;
use crate::progress::note;
use crate::runs::condition::Condition;
use crate::runs::context_budget::{
    BudgetError, BudgetedCase, Cut, TEMPLATE_RESERVE, cut_messages, cut_prompts, part_of,
};
use crate::runs::header::{ContextPolicy, Identity, NameAndDigest};
use crate::runs::model_subject::ModelSubject;
use crate::runs::rows::NoAnswer;
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
use palimpsest_data::prompt::{PromptBuilder, Templates};

pub struct Counter {
    /// Tokeniser; absent for a stated characters-per-token bound.
    named: Option<NameAndDigest>,
    tokens: Box<dyn CountTokens>,
}

/// A case's parts, if it was cut.
type Parts = Option<Vec<BudgetedCase<Vec<Message>>>>;

/// Builds an endpoint's prompts: cut by counted tokens, or whole without a token counter.
pub struct EndpointPrompts {
    builder: PromptBuilder,
    counter: Option<Counter>,
    cut: Cut,
}

impl EndpointPrompts {
    pub fn parts(&self, case: &Case) -> Result<Parts, BudgetError> {
        let cut = |counter: &Counter| cut_messages(&self.builder, &*counter.tokens, case, self.cut);
        self.counter.as_ref().map(cut).transpose()
    }

    pub fn prompt(&self, parts: &Parts, case: &Case, probe: &Probe) -> Result<ChatPrompt, NoAnswer> {
        let Some(parts) = parts else {
            let prompt = self.builder.build(&case.history, &case.evidence, probe)?;
            return Ok(ChatPrompt { messages: prompt.messages, ..ChatPrompt::default() });
        };
        let at = case.probes.iter().position(|other| other.id == probe.id);
        let (part, messages) = at
            .and_then(|at| part_of(parts, at))
            .ok_or_else(|| format!("This is a bug: case `{}` has no probe `{}`", case.id, probe.id))?;
        Ok(ChatPrompt { messages: messages.clone(), dropped: part.dropped.clone() })
    }
}

impl RunSpec {
    pub fn endpoint_prompts(
        &self,
        (templates, template): (Templates, ChatTemplate),
        counter: Option<Counter>,
        limits: AnswerLimits,
    ) -> EndpointPrompts {
        let by = limits.truncation;
        let budget = by.budget(self.context.unwrap_or(usize::MAX), self.generated_by_endpoint(limits));
        let cut = Cut { budget, by, seed: self.seed };
        EndpointPrompts { builder: self.builder(templates, template), counter, cut }
    }

    /// Without a token counter, histories are sent whole.
    pub fn endpoint_conditions(
        &self,
        dataset: &Dataset,
        EndpointPrompts { builder, counter, cut }: &EndpointPrompts,
    ) -> anyhow::Result<Vec<Condition>> {
        let budget = cut.budget.saturating_sub(cut.template_reserve());
        self.choose(dataset, builder, counter.as_ref().map(|counter| (&*counter.tokens, budget)))
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

    pub(super) fn run_endpoint(&self, begin: &Begin<'_>, keys: &Keys) -> anyhow::Result<Summary> {
        let mut data = self.open()?;
        let (all, limits) = (std::mem::take(&mut data.all), data.limits);
        let dataset = &data.dataset;
        let plan = self.plan(dataset, all)?;
        let templates = self.templates(dataset.benchmark())?;
        let prompts = templates.digest().to_owned();
        let counter = self.counter()?;
        let patience = Patience { timeout: Duration::from_secs(600), ..Patience::default() };
        let mut endpoint =
            Endpoint::from_address(&self.model, keys, patience)?.thinking(self.thinking.endpoint());
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
        let shown = self.endpoint_prompts((templates, template), counter, limits);
        check_templates(&shown.builder, data.first.as_ref())?;
        let conditions = self.endpoint_conditions(dataset, &shown)?;
        let counter = shown.counter.as_ref();
        let counted = match counter.is_some_and(|counter| counter.named.is_some()) {
            true => BorderRule::FirstCharacter,
            false => BorderRule::default(),
        };
        let stop = (begin.watch)("stopping after the answer under way")?;
        let systems = self.memory.start_systems((self.seed, keys), begin.folder, &conditions, &stop)?;
        let identity = Identity {
            model: NameAndDigest { digest: sha256(&name), name },
            dtype: own.as_ref().map(|(server, _)| server.dtype.clone()),
            cache_dtype: own.as_ref().and_then(|(server, _)| server.cache_dtype.clone()),
            prompts: Some(prompts),
            context: self.context_of_endpoint(counter, limits),
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
            let EndpointPrompts { builder, counter, cut } = shown;
            let prepare = move |case: &Case| {
                let parts = match &counter {
                    Some(Counter { tokens, .. }) => cut_prompts(&builder, &**tokens, case, cut)?,
                    None => vec![BudgetedCase::whole(case, builder.build_all(case, &case.history)?)],
                };
                let encoded = parts.into_iter().map(|part| part.map(|prompt| prompt.encode(&tokenizer)));
                Ok(encoded.collect::<Result<_, TextError>>()?)
            };
            let options = self.subject_options(&data, true);
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
        let parts = |case: &Case| Ok(shown.parts(case)?);
        let prompt = |parts: &Parts, case: &Case, probe: &Probe| shown.prompt(parts, case, probe);
        let mut subject = ChatSubject::new(lines, self.sampling(limits), parts, prompt);
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
            (Some(_), ..) => "the model can think, and a server has no attention of text after a thought",
            (_, true, _) => "the model has linear-attention layers, which a server does not report in full",
            (.., true) => {
                "the benchmark wants rows beside spans, the query and the answer, which a server cannot give"
            }
            _ => return Ok(Some((server, template))),
        };
        note(format_args!("note: no attention is recorded: {why}; run the model itself for that"));
        Ok(None)
    }
}
