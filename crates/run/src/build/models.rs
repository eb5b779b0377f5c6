//! The generator and the checker of a build, opened when a stage asks them, and a tokenizer that is opened when a maker counts.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::chat::ChatModel;
use crate::chat::endpoint::{Endpoint, EndpointThinking, Keys, Patience, is_address};
use crate::embedder::Embedder;
use crate::models::{self, DeviceArgs, DtypeArgs, ModelArgs, ModelStore, TokenCounter, Weights};
use palimpsest_core::digest::sha256;
use palimpsest_core::engine::{ContextLength, LocalOptions, ThinkingOptions};
use palimpsest_core::text::{CountTokens, SpecialTokens, TextError, ThinkingMode};
use palimpsest_data::build::Role;

/// How models are opened.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    pub on: DeviceArgs,
    pub in_dtype: DtypeArgs,
    /// Maximum tokens of prompt and reply of a local model, thoughts apart.
    pub context: usize,
    pub thinking: ThinkingOptions,
    pub endpoint_thinking: EndpointThinking,
    pub patience: Patience,
    pub keys: Keys,
    /// Calls at once, where both models are endpoints.
    pub jobs: usize,
}

/// The models by name: `local:NAME`, a name, or `http://host[:port]/v1#model`.
#[derive(Debug, Clone)]
pub struct Models {
    pub generator: Option<String>,
    pub checker: Option<String>,
    /// The generator may check its own rows.
    pub one_model: bool,
    pub options: ModelOptions,
}

/// Models that one thread asks.
#[derive(Default)]
pub struct Worker {
    generator: Option<Box<dyn ChatModel + Send>>,
    /// `None`: the generator checks.
    checker: Option<Box<dyn ChatModel + Send>>,
}

impl Worker {
    pub fn of(&mut self, role: Role) -> Option<&mut (dyn ChatModel + Send)> {
        let model = match (role, &mut self.checker) {
            (Role::Checker, Some(checker)) => checker,
            _ => self.generator.as_mut()?,
        };
        Some(model.as_mut())
    }
}

fn local(name: &str) -> &str {
    name.strip_prefix("local:").unwrap_or(name)
}

impl Models {
    fn name(&self, role: Role) -> anyhow::Result<&str> {
        let (given, flag) = match role {
            Role::Checker if self.checker.is_some() || !self.one_model => (&self.checker, "--checker"),
            _ => (&self.generator, "--model"),
        };
        given.as_deref().with_context(|| {
            let checks = if flag == "--checker" { ", or let the generator check by --one-model" } else { "" };
            format!("a stage asks a model that is not given; name it with {flag}{checks}")
        })
    }

    /// Names and digests of the models that these roles need. Fails if one is missing, or if the generator would check itself unasked.
    pub fn identities(&self, roles: &BTreeSet<Role>) -> anyhow::Result<Vec<(&'static str, Value)>> {
        let mut found: Vec<(&'static str, Value)> = Vec::new();
        for role in roles {
            let name = self.name(*role)?;
            let digest = match is_address(name) {
                true => sha256(name),
                false => {
                    let store = ModelStore::open()?;
                    store.digest(&store.resolve_to_run(local(name))?)?
                }
            };
            let shown = if is_address(name) { name } else { local(name) };
            let of = match role {
                Role::Generator => "generator",
                Role::Checker => "checker",
            };
            found.push((of, json!({"name": shown, "digest": digest})));
        }
        if let [(_, generator), (_, checker)] = found.as_slice() {
            ensure!(
                self.one_model || generator["digest"] != checker["digest"],
                "--model and --checker are the same model, {}, which would check its own rows; name another --checker, or allow it by \
                 --one-model",
                generator["name"]
            );
        }
        Ok(found)
    }

    /// Opens the models of these roles.
    pub fn open(&self, roles: &BTreeSet<Role>) -> anyhow::Result<Vec<Worker>> {
        let names: BTreeSet<&str> =
            roles.iter().map(|role| self.name(*role)).collect::<anyhow::Result<_>>()?;
        let all_at_endpoints = names.iter().all(|name| is_address(name));
        let count = if all_at_endpoints { self.options.jobs.max(1) } else { 1 };
        let mut workers: Vec<Worker> =
            (0..count).map(|_| Worker { generator: None, checker: None }).collect();
        for role in roles {
            let name = self.name(*role)?;
            let is_same = *role == Role::Checker && roles.contains(&Role::Generator) && names.len() == 1;
            if is_same {
                continue;
            }
            let models = self.open_one(name, count)?;
            for (worker, model) in workers.iter_mut().zip(models) {
                match role {
                    Role::Generator => worker.generator = Some(model),
                    Role::Checker => worker.checker = Some(model),
                }
            }
        }
        Ok(workers)
    }

    fn open_one(&self, name: &str, count: usize) -> anyhow::Result<Vec<Box<dyn ChatModel + Send>>> {
        let ModelOptions { on, in_dtype, context, thinking, endpoint_thinking, patience, keys, .. } =
            &self.options;
        if is_address(name) {
            let model = Endpoint::from_address(name, keys, *patience)?.thinking(endpoint_thinking.clone());
            model.check_reachable()?;
            return Ok((0..count).map(|_| Box::new(model.clone()) as Box<_>).collect());
        }
        let args = ModelArgs { on: on.clone(), in_dtype: in_dtype.clone(), weights: Weights::default() };
        let thought = if thinking.mode == ThinkingMode::Off { 0 } else { thinking.max };
        let options = LocalOptions {
            context: ContextLength::AtMost(context.saturating_add(thought)),
            thinking: *thinking,
            ..args.options()?
        };
        Ok(vec![Box::new(models::open(local(name), &options)?.model)])
    }
}

/// A tokenizer that is opened when it first counts.
pub struct LazyTokens {
    name: String,
    opened: OnceLock<Result<TokenCounter, String>>,
}

impl LazyTokens {
    pub fn new(name: &str) -> Self {
        LazyTokens { name: name.to_owned(), opened: OnceLock::new() }
    }

    fn counter(&self) -> Result<&TokenCounter, TextError> {
        let open = || TokenCounter::open(&self.name).map_err(|error| format!("{error:#}"));
        let opened = self.opened.get_or_init(open).as_ref();
        opened.map_err(|reason| TextError::Tokenizer {
            name: self.name.clone(),
            reason: format!("{reason}; name another one with --tokenizer"),
        })
    }

    /// Name and digest, once it was needed.
    pub fn identity(&self) -> Option<Value> {
        let counter = self.opened.get()?.as_ref().ok()?;
        Some(json!({"name": counter.name, "digest": counter.digest}))
    }
}

impl CountTokens for LazyTokens {
    fn count(&self, text: &str) -> Result<usize, TextError> {
        self.counter()?.tokens.count(text)
    }

    fn count_each(&self, texts: &[&str], special: SpecialTokens) -> Result<Vec<usize>, TextError> {
        self.counter()?.tokens.count_each(texts, special)
    }
}

/// Vectors of the built-in embedding model, which is opened when it is first needed.
#[derive(Default)]
pub struct LazyEmbedder(OnceLock<Result<Embedder, String>>);

impl LazyEmbedder {
    pub fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, String> {
        let open = || -> anyhow::Result<Embedder> {
            Embedder::built_in()?;
            Ok(Embedder::open(&ModelStore::open()?.embedder()?)?)
        };
        let embedder = self.0.get_or_init(|| open().map_err(|error| format!("{error:#}"))).as_ref();
        embedder.map_err(Clone::clone)?.embed(texts, |_| {}).map_err(|error| error.to_string())
    }
}
