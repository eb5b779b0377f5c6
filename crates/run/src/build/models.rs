//! The generator and the checker of a build, opened when a stage asks them, and a tokenizer that is opened when a maker counts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};

use super::folder::{Identities, refuse_differences};
use crate::chat::ChatModel;
use crate::chat::endpoint::{Endpoint, KeyArgs, Patience, is_address};
use crate::embedder::Embedder;
use crate::models::{self, DeviceArgs, DtypeArgs, ModelArgs, ModelStore, TokenCounter, Weights};
use crate::runs::setup::{Thinking, WrongUsage, positive, wrong};
use palimpsest_core::digest::sha256;
use palimpsest_core::engine::{ContextLength, LocalOptions};
use palimpsest_core::text::{CountTokens, SpecialTokens, TextError, ThinkingMode};
use palimpsest_data::build::Role;

/// The models, and how they are opened.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct Models {
    /// The generator, which writes: `local:NAME` or NAME (whatever --model of `run` takes), or `http://host[:port]/v1#model`.
    #[arg(long = "model", value_name = "MODEL")]
    generator: Option<String>,
    /// The checker, which judges what the generator wrote; best of another family of models.
    #[arg(long, value_name = "MODEL")]
    checker: Option<String>,
    /// Let one model write and check: --checker may be left out, or be the same model.
    #[arg(long)]
    one_model: bool,
    #[command(flatten)]
    on: DeviceArgs,
    #[command(flatten)]
    in_dtype: DtypeArgs,
    /// Local models: most tokens of prompt and reply.
    #[arg(long, default_value_t = 16_384, value_name = "TOKENS", value_parser = positive, help_heading = "Model")]
    context: usize,
    #[command(flatten)]
    thinking: Thinking,
    /// Endpoints: rows at once [default: 4]. What is built is the same.
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Endpoint")]
    jobs: Option<usize>,
    /// Endpoint: most seconds to wait for one reply.
    #[arg(long, default_value_t = 600, value_name = "SECONDS", help_heading = "Endpoint")]
    timeout: u64,
    /// Endpoint: attempts after a failed first one.
    #[arg(long, default_value_t = 5, help_heading = "Endpoint")]
    retries: usize,
    #[command(flatten)]
    keys: KeyArgs,
}

/// Default parallel endpoint calls, as of judging.
const JOBS: usize = 4;

type Model = Box<dyn ChatModel + Send>;

/// Models that one thread asks.
#[derive(Default)]
pub struct Worker(BTreeMap<Role, Model>);

impl Worker {
    /// Without a checker the generator checks.
    pub fn of(&mut self, role: Role) -> Option<&mut (dyn ChatModel + Send)> {
        let role = if self.0.contains_key(&role) { role } else { Role::Generator };
        Some(self.0.get_mut(&role)?.as_mut())
    }
}

fn local(name: &str) -> &str {
    name.strip_prefix("local:").unwrap_or(name)
}

impl Models {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.generator.iter().chain(&self.checker).map(String::as_str)
    }

    /// Refuses flags that do not go together, and addresses that do not parse.
    pub fn check(&self) -> anyhow::Result<()> {
        let thinking = self.thinking.check(self.names().any(is_address));
        thinking.map_err(|error| WrongUsage(error.to_string()))?;
        self.names().filter(|name| is_address(name)).try_for_each(|name| self.endpoint(name).map(drop))
    }

    fn endpoint(&self, address: &str) -> anyhow::Result<Endpoint> {
        let timeout = Duration::from_secs(self.timeout.max(1));
        let patience = Patience { timeout, retries: self.retries, ..Patience::default() };
        Ok(Endpoint::from_address(address, &self.keys.of(self.names())?, patience)?)
    }

    /// Refuses roles without a model.
    fn check_roles(&self, roles: &BTreeSet<Role>) -> anyhow::Result<()> {
        match roles.iter().find(|role| self.name(**role).is_none()) {
            None => Ok(()),
            Some(Role::Generator) => wrong(
                "--model is missing: the spec's stages ask a generator; give local:NAME or http://host[:port]/v1#model",
            ),
            Some(Role::Checker) => wrong(
                "--checker is missing: the spec's stages ask a checker; give local:NAME or http://host[:port]/v1#model, or --model and \
                 --one-model",
            ),
        }
    }

    fn name(&self, role: Role) -> Option<&str> {
        match role {
            Role::Checker if self.checker.is_some() || !self.one_model => self.checker.as_deref(),
            _ => self.generator.as_deref(),
        }
    }

    fn names_of(&self, roles: &BTreeSet<Role>) -> anyhow::Result<BTreeMap<Role, &str>> {
        self.check_roles(roles)?;
        Ok(roles.iter().filter_map(|role| Some((*role, self.name(*role)?))).collect())
    }

    /// Names and digests of the models that these roles need. Fails if one is missing, or if the generator would check itself unasked.
    pub fn identities(&self, roles: &BTreeSet<Role>) -> anyhow::Result<Identities> {
        let identity = |(role, name): (Role, &str)| -> anyhow::Result<(&'static str, Value)> {
            let of = if role == Role::Generator { "generator" } else { "checker" };
            if is_address(name) {
                return Ok((of, json!({"name": name, "digest": sha256(name)})));
            }
            let (store, name) = (ModelStore::open()?, local(name));
            let digest = store.digest(&store.resolve_to_run(name)?)?;
            Ok((of, json!({"name": name, "digest": digest})))
        };
        let found: Vec<_> = self.names_of(roles)?.into_iter().map(identity).collect::<anyhow::Result<_>>()?;
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

    /// Opens the models of these roles, one of both roles once, whatever it is called; `identities`: [`Self::identities`] of the roles.
    pub fn open(&self, roles: &BTreeSet<Role>, identities: &Identities) -> anyhow::Result<Vec<Worker>> {
        let mut names = self.names_of(roles)?;
        if let [(_, generator), (_, checker)] = identities.as_slice()
            && generator["digest"] == checker["digest"]
        {
            names.remove(&Role::Checker);
        }
        let count =
            if names.values().all(|name| is_address(name)) { self.jobs.unwrap_or(JOBS).max(1) } else { 1 };
        let mut workers: Vec<Worker> = (0..count).map(|_| Worker::default()).collect();
        for (role, name) in names {
            for (worker, model) in workers.iter_mut().zip(self.open_one(name, count)?) {
                worker.0.insert(role, model);
            }
        }
        Ok(workers)
    }

    fn open_one(&self, name: &str, count: usize) -> anyhow::Result<Vec<Model>> {
        if is_address(name) {
            let model = self.endpoint(name)?.thinking(self.thinking.endpoint());
            model.check_reachable()?;
            return Ok((0..count).map(|_| Box::new(model.clone()) as Model).collect());
        }
        let (on, in_dtype) = (self.on.clone(), self.in_dtype.clone());
        let thinking = self.thinking.local();
        let thought = if thinking.mode == ThinkingMode::Off { 0 } else { thinking.max };
        let options = LocalOptions {
            context: ContextLength::AtMost(self.context.saturating_add(thought)),
            thinking,
            ..ModelArgs { on, in_dtype, weights: Weights::default() }.options()?
        };
        Ok(vec![Box::new(models::open(local(name), &options)?.model)])
    }
}

pub const TOKENIZER: &str = "tokenizer";

/// A tokenizer that is opened when it first counts.
pub struct LazyTokens {
    name: String,
    /// A folder whose rows were counted with the tokenizer of this identity.
    counted: Option<(PathBuf, Value)>,
    opened: OnceLock<Result<TokenCounter, String>>,
}

impl LazyTokens {
    pub fn new(name: &str) -> Self {
        LazyTokens { name: name.to_owned(), counted: None, opened: OnceLock::new() }
    }

    /// Refuses another tokenizer than the one that the folder's rows were counted with, when it is opened.
    #[must_use]
    pub fn as_in(self, dir: &Path, stored: Option<&Value>) -> Self {
        LazyTokens { counted: stored.map(|stored| (dir.to_owned(), stored.clone())), ..self }
    }

    fn open(&self) -> anyhow::Result<TokenCounter> {
        let counter = TokenCounter::open(&self.name)?;
        if let Some((dir, stored)) = &self.counted {
            refuse_differences(dir, &json!({TOKENIZER: stored}), &json!({TOKENIZER: identity(&counter)}))?;
        }
        Ok(counter)
    }

    /// Opens the tokenizer if the folder's rows were counted. Fails if it is another one.
    pub fn compare(&self) -> Result<(), TextError> {
        self.counted.as_ref().map_or(Ok(()), |_| self.counter().map(drop))
    }

    fn counter(&self) -> Result<&TokenCounter, TextError> {
        let open = || self.open().map_err(|error| format!("{error:#}"));
        let opened = self.opened.get_or_init(open).as_ref();
        opened.map_err(|reason| TextError::Tokenizer {
            name: self.name.clone(),
            reason: format!("{reason}; name another one with --tokenizer"),
        })
    }

    /// Name and digest, once it was needed.
    pub fn identity(&self) -> Option<(&'static str, Value)> {
        let counter = self.opened.get()?.as_ref().ok()?;
        Some((TOKENIZER, identity(counter)))
    }
}

fn identity(counter: &TokenCounter) -> Value {
    json!({"name": counter.name, "digest": counter.digest})
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
pub fn embedder() -> impl Fn(&[&str]) -> Result<Vec<Vec<f32>>, String> + Sync {
    let opened: OnceLock<Result<Embedder, String>> = OnceLock::new();
    let open = || -> anyhow::Result<Embedder> {
        Embedder::built_in()?;
        Ok(Embedder::open(&ModelStore::open()?.embedder()?)?)
    };
    move |texts| {
        let embedder = opened.get_or_init(|| open().map_err(|error| format!("{error:#}"))).as_ref();
        embedder.map_err(Clone::clone)?.embed(texts, |_| {}).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Args {
        #[command(flatten)]
        models: Models,
    }

    #[test]
    fn weights_of_two_names_are_opened_once() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/llama-tiny");
        let other =
            concat!("local:", env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/../fixtures/llama-tiny/");
        let third = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/qwen2-tiny");
        let roles = BTreeSet::from([Role::Generator, Role::Checker]);
        for (checker, opened) in [(folder, 1), (other, 1), (third, 2)] {
            let given = ["build", "--one-model", "--context", "256", "--model", folder, "--checker", checker];
            let Args { models } = clap::Parser::parse_from(given);
            let identities = models.identities(&roles).unwrap();
            assert_eq!(identities.len(), 2);
            let mut workers = models.open(&roles, &identities).unwrap();
            assert_eq!((workers.len(), workers[0].0.len()), (1, opened), "{checker}");
            assert!(roles.iter().all(|role| workers[0].of(*role).is_some()), "{checker}");
        }
    }
}
