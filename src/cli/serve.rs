//! `palimpsest serve`: a local model behind OpenAI's API.

use std::net::{IpAddr, SocketAddr};
#[cfg(unix)]
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::{WrongValue, interrupt, other_users, wrong};
use crate::api::keys::can_be_sent;
use crate::api::listen::{Address, Listener};
use crate::api::{
    DEFAULT_CHUNK, DEFAULT_MAX_ANSWER, DEFAULT_QUEUE, Keys, LogFormat, ServeError, ServeOptions, Server,
    allowed_host, allowed_origin,
};
use crate::ground::text_file;
use crate::heads::HeadScores;
use crate::models::{self, EmbedderCard, ModelArgs, ModelStore, Opened};
use crate::progress::{flush_notes, note, note_later};
use palimpsest_core::engine::memory_plan::{Serving, gigabytes};
use palimpsest_core::engine::thread::Limits;
use palimpsest_core::engine::{self, ContextLength, LocalOptions, ThinkingOptions};
use palimpsest_core::text::{ReasoningEffort, ThinkingMode};

const EXAMPLES: &str = "\
Examples:
  palimpsest serve smollm2-135m
  palimpsest serve smollm2-135m all-minilm-l6-v2
  palimpsest serve ./Some-Model.Q4_K_M.gguf --context 32768 --port 9000
  palimpsest serve qwen3-8b --device cuda --host 0.0.0.0 --api-key-file key.txt
  palimpsest serve smollm2-135m --socket /run/user/1000/palimpsest

  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"model\": \"smollm2-135m\",
    \"messages\": [{\"role\": \"user\", \"content\": \"Who wrote Faust?\"}],
    \"palimpsest\": {\"rows\": [\"last\", \"answer\"]}}'

docs/serve.md has the API, what it adds to OpenAI's, and what is not served yet.";

const KEY_VARIABLE: &str = "PALIMPSEST_API_KEY";

/// Serve a model over OpenAI's API, with attention by span.
///
/// Chat completions, completions (with the probabilities of prompts), embeddings and tokens, for any client of OpenAI's API, and a page to
/// try it with. On request a reply has the answer's attention to each part of the prompt. Only programs on this machine can reach the
/// server unless --host allows others, and then only with a key. Ctrl-C ends it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A name of `palimpsest model list`, owner/name[@revision] of the Hugging Face hub, a model folder, or a .gguf file: one model
    /// that answers. all-minilm-l6-v2, which embeds texts, is always served beside it; named here it is fetched at once
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<String>,
    /// Address to listen at; any but loopback needs a key
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS", help_heading = "Server")]
    host: IpAddr,
    /// Port to listen at; 0 for a free one
    #[arg(long, default_value_t = 8080, help_heading = "Server")]
    port: u16,
    /// Listen at this Unix socket instead, which only this user can open: curl --unix-socket PATH http://localhost/v1/models
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port"], help_heading = "Server")]
    socket: Option<PathBuf>,
    /// File with the key that clients must send; PALIMPSEST_API_KEY holds the key itself
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    api_key_file: Option<PathBuf>,
    /// TOML file of several keys, each a table [[key]] with name, key or sha256, and if wanted places (most requests at once) and rate (most a
    /// minute)
    #[arg(long, value_name = "FILE", conflicts_with = "api_key_file", help_heading = "Server")]
    keys: Option<PathBuf>,
    /// Let clients with different keys reuse each other's cached prompts; each can then find out the texts of the others' prompts
    #[arg(long, help_heading = "Server")]
    share_prefixes: bool,
    /// Most tokens of prompt and answer together [default: the model's context length, at most 8192]
    #[arg(long, value_name = "TOKENS", value_parser = super::positive, help_heading = "Memory and context")]
    context: Option<usize>,
    /// Allow a context longer than the model's
    #[arg(long, help_heading = "Memory and context")]
    allow_longer: bool,
    /// Completions that are served or wait; further ones get status 429
    #[arg(long, default_value_t = DEFAULT_QUEUE, value_name = "N", value_parser = super::positive, help_heading = "Server")]
    queue: usize,
    /// Most answers generated together; others wait [default: as many as fit, at most 16]
    #[arg(long, value_name = "N", value_parser = super::positive, help_heading = "Memory and context")]
    parallel: Option<usize>,
    /// Most tokens in the KV cache, of kept prompts and answers under way; at least the context [default: as many as fit, at most 8
    /// contexts]
    #[arg(long, value_name = "TOKENS", value_parser = super::positive, help_heading = "Memory and context")]
    cache_tokens: Option<usize>,
    /// Most memory of the server, model, caches and requests together, such as 4GiB; a plan that does not fit is refused at the start
    /// [default: three quarters of the free memory]
    #[arg(long, value_name = "SIZE", value_parser = bytes, help_heading = "Memory and context")]
    memory: Option<u64>,
    /// Most tokens of an answer whose request names no limit; a request may name up to the context
    #[arg(long, default_value_t = DEFAULT_MAX_ANSWER, value_name = "TOKENS", value_parser = super::positive, help_heading = "Answers")]
    max_answer: usize,
    /// Text that ends a chat's answer, beside those of the request (repeatable). '' alone for none [default: for a base model without a chat
    /// template, the beginning of another turn]
    #[arg(long = "stop", value_name = "TEXT", help_heading = "Answers")]
    stops: Vec<String>,
    /// One log line per request on stderr, without its texts: text, json or off
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT", help_heading = "Server")]
    log: LogFormat,
    /// Seconds after which the log and /metrics mark a request as slow
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS", value_parser = seconds, help_heading = "Server")]
    slow: f64,
    /// Origin of web pages that may send requests, such as http://localhost:3000 (repeatable)
    #[arg(long = "allow-origin", value_name = "ORIGIN", value_parser = allowed_origin, help_heading = "Server")]
    origins: Vec<String>,
    /// A further name by which clients may call this machine, such as host.docker.internal (repeatable)
    #[arg(long = "allow-host", value_name = "HOST", value_parser = allowed_host, help_heading = "Server")]
    hosts: Vec<String>,
    /// Tokens per prefill step while nothing is generated; fewer beside answers. Answers are the same
    #[arg(long, default_value_t = DEFAULT_CHUNK, value_name = "TOKENS", value_parser = super::positive, help_heading = "Memory and context")]
    chunk: usize,
    #[command(flatten)]
    loaded: ModelArgs,
    /// Whether the model thinks before it answers; a request may set its own
    #[arg(long, value_enum, default_value_t, help_heading = "Answers")]
    thinking: ThinkingMode,
    /// Most tokens of a thought
    #[arg(long, value_name = "TOKENS", default_value_t = engine::DEFAULT_MAX_THINKING, value_parser = super::positive, help_heading = "Answers")]
    max_thinking: usize,
    /// File of `palimpsest heads`, for the heads that requests call "retrieval" [default: the scores that `palimpsest heads` kept in the
    /// model home]
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    heads: Option<PathBuf>,
    /// End when standard input ends, which it does when the parent process ends
    #[arg(long, hide = true)]
    while_input: bool,
    /// The default `reasoning_effort`, for chat templates that have it; a request may set its own
    #[arg(long, value_enum, value_name = "EFFORT", help_heading = "Answers")]
    reasoning_effort: Option<ReasoningEffort>,
}

/// Parses a size with a binary (KiB, MiB, GiB, TiB) or decimal (kB, MB, GB, TB) unit.
fn bytes(text: &str) -> Result<u64, WrongValue> {
    const UNITS: [(&str, f64); 8] = [
        ("kib", 1024.0),
        ("mib", 1_048_576.0),
        ("gib", 1_073_741_824.0),
        ("tib", 1_099_511_627_776.0),
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
        ("tb", 1e12),
    ];
    let lower = text.trim().to_ascii_lowercase();
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((lower.strip_suffix(unit)?, bytes)));
    let read = unit.and_then(|(number, bytes)| Some(number.trim().parse::<f64>().ok()? * bytes));
    match read {
        Some(bytes) if bytes.is_finite() && (1.0..1e18).contains(&bytes) => Ok(bytes as u64),
        _ => Err(WrongValue("give a number with a unit, such as 4GiB, 512MiB or 8GB".to_owned())),
    }
}

/// Default context in tokens: fits wherever the model fits.
const USUAL_CONTEXT: usize = 8192;

pub fn run(args: Args) -> anyhow::Result<()> {
    let embedder = EmbedderCard::built_in()?.name;
    let (embedders, decoders): (Vec<&String>, Vec<&String>) =
        args.models.iter().partition(|name| **name == embedder);
    let name = match decoders.as_slice() {
        [name] => name.as_str(),
        [] => {
            return wrong(format!(
                "{embedder} embeds texts and answers nothing; name a model that answers beside it"
            ));
        }
        [first, second, ..] => {
            return wrong(format!(
                "one model answers, and {first} and {second} are two; start a server for each, with its --port"
            ));
        }
    };
    if args.stops.len() > 1 && args.stops.iter().any(String::is_empty) {
        return wrong(
            "--stop '' beside other texts: an empty text alone means that none ends an answer; drop one or the other",
        );
    }
    let keys = keys(&args)?;
    let address = match &args.socket {
        Some(path) => Address::Unix(path.clone()),
        None => Address::Tcp(SocketAddr::new(args.host, args.port)),
    };
    if keys.is_empty() && !address.is_local() {
        return wrong(ServeError::NeedsKey { address }.to_string());
    }
    let stop = interrupt::flag_of_server("stopping after the answers under way")?;
    let listener = Listener::bind(&address).with_context(|| {
        let flag = if args.socket.is_none() { "--port" } else { "--socket" };
        format!("cannot listen at {address}; is something else there? Give another {flag}")
    })?;
    interrupt::at_exit(listener.removal());
    if args.while_input {
        end_with_input()?;
    }
    let loaded = args.loaded.options()?;

    let options = LocalOptions {
        context: args.context.map_or(ContextLength::AtMost(USUAL_CONTEXT), ContextLength::Exactly),
        allow_longer: args.allow_longer,
        chunk: args.chunk,
        logits: args.chunk,
        serving: Some(Serving { parallel: args.parallel, tokens: args.cache_tokens, memory: args.memory }),
        thinking: ThinkingOptions {
            mode: args.thinking,
            effort: args.reasoning_effort,
            max: args.max_thinking,
        },
        ..loaded
    };
    let Opened { model, digest, .. } = models::open(name, &options)?;
    if keys.is_empty()
        && args.socket.is_none()
        && let Some(others) = other_users::found()
    {
        note(format_args!(
            "note: {others} can use this machine, and with it this server, which asks for no key: send requests, read /metrics, and find out by \
             `cached_tokens` whether a text was sent before. --api-key-file or --keys lets in those who have a key, --socket those who \
             can open the file"
        ));
    }
    // A folder may have any name.
    let (served, context) = (model.model_name().replace(char::is_control, "?"), model.context());
    let Limits { parallel, tokens, .. } = model.limits();
    let memory = model.server_memory();
    let (planned, requests) = (gigabytes(memory.planned), gigabytes(memory.requests));
    let retrieval = retrieval(args.heads.as_deref(), (&served, &digest))?;
    if model.template().is_plain() {
        note(format_args!(
            "note: {served} has no chat template (a base model); chats use the plain layout of docs/data.md, and an answer ends where the \
             next turn begins (--stop)"
        ));
    }
    let stops = match &args.stops[..] {
        [] => None,
        given => Some(given.iter().filter(|stop| !stop.is_empty()).cloned().collect()),
    };
    let options = ServeOptions {
        keys,
        share_prefixes: args.share_prefixes,
        queue: args.queue,
        max_thinking: args.max_thinking,
        max_answer: args.max_answer,
        stops,
        origins: args.origins,
        hosts: args.hosts,
        log: args.log,
        slow: Duration::from_secs_f64(args.slow),
        retrieval,
        ..ServeOptions::default()
    };
    let url = listener.address()?.url("/v1");
    let (server, work) = Server::new(listener, model, options)?;
    if !embedders.is_empty() {
        server.open_embedder()?;
    }

    // Connections get their own thread; this one belongs to the compute pool and runs the model.
    let serving = thread::Builder::new().name("serve".to_owned()).spawn(move || server.run(stop));
    let serving = serving.context("no thread for connections")?;
    super::say(format_args!(
        "{served} is served at {url}, {context} tokens of context, {parallel} answers at once, {tokens} tokens of \
         cache and {requests} for requests: {planned} of memory in all; Ctrl-C ends it"
    ))?;
    work.run();
    let ended = serving.join();
    // The last lines of the log.
    flush_notes();
    ensure!(ended.is_ok(), "This is a bug: the thread of connections panicked");
    if let Ok(ended) = ended {
        ended.context("the server ended")?;
    }
    note_later("the server has ended");
    flush_notes();
    Ok(())
}

/// Exits the process when stdin ends.
fn end_with_input() -> anyhow::Result<()> {
    let wait = || {
        // Read errors count as the end.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        interrupt::exit(0);
    };
    thread::Builder::new().name("input".to_owned()).spawn(wait).context("no thread for the input")?;
    Ok(())
}

fn retrieval(
    file: Option<&Path>,
    (name, digest): (&str, &str),
) -> anyhow::Result<Option<Vec<(usize, usize)>>> {
    let kept = HeadScores::kept_at(ModelStore::open()?.home(), digest);
    let (path, scores) = match file {
        Some(path) => (path, HeadScores::load(path)?),
        None if kept.exists() => match HeadScores::load(&kept) {
            Ok(scores) => (kept.as_path(), scores),
            Err(error) => {
                note(format_args!("{error}"));
                return Ok(None);
            }
        },
        None => {
            note(format_args!(
                "it is not known which heads of {name} retrieve, so that scores of documents are taken over all heads; \
                 `palimpsest heads {name}` finds them"
            ));
            return Ok(None);
        }
    };
    ensure!(
        scores.digest == digest,
        "the head scores {} are of {}, whose weights are not those of {name}; make them with `palimpsest heads {name}`",
        path.display(),
        scores.model
    );
    let heads = scores.retrieving();
    match &heads {
        Some(heads) => note(format_args!("{} heads of {name} retrieve: {}", heads.len(), path.display())),
        None => note(format_args!("{}: no head of {name} retrieves", path.display())),
    }
    Ok(heads)
}

fn seconds(text: &str) -> Result<f64, WrongValue> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| Duration::try_from_secs_f64(*seconds).is_ok());
    seconds.ok_or_else(|| WrongValue("not a number of seconds; give 0 or more".to_owned()))
}

/// Keys of `--keys`, `--api-key-file` or the environment; none if there are none.
fn keys(args: &Args) -> anyhow::Result<Keys> {
    let of_variable = std::env::var(KEY_VARIABLE).unwrap_or_default();
    let file = args.keys.as_deref().or(args.api_key_file.as_deref());
    let keys = match &args.keys {
        Some(_) if !of_variable.trim().is_empty() => {
            return wrong(format!(
                "--keys and {KEY_VARIABLE} both give keys; leave one out, or add that key to the file"
            ));
        }
        Some(path) => Keys::read(path)?,
        None => {
            key(args.api_key_file.as_deref(), of_variable)?.map_or_else(Keys::default, |key| Keys::one(&key))
        }
    };
    file.into_iter().for_each(note_readers);
    Ok(keys)
}

/// Notes that others can read a file of keys.
fn note_readers(path: &Path) {
    #[cfg(unix)]
    if let Ok(file) = path.metadata()
        && file.is_file()
        && file.permissions().mode() & 0o044 != 0
    {
        let path = path.display();
        note(format_args!("note: others than its owner can read the keys in {path}; chmod 600 {path}"));
    }
}

fn key(file: Option<&Path>, of_variable: String) -> anyhow::Result<Option<String>> {
    let text = match file {
        Some(path) => text_file::read(path).with_context(|| format!("the key's file {}", path.display()))?,
        None => of_variable,
    };
    let key = text.trim();
    if key.is_empty() {
        ensure!(file.is_none(), "the key's file is empty; write the key into it");
        return Ok(None);
    }
    ensure!(
        can_be_sent(key),
        "the key holds white space or characters that no HTTP header can carry; take letters, digits and signs"
    );
    Ok(Some(key.to_owned()))
}
