//! `palimpsest view`: a page over run folders.

use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, ensure};
use tempfile::NamedTempFile;

use super::interrupt;
use crate::api::listen::{Address, Listener};
use crate::chat::endpoint::{KeyArgs, Keys, is_address};
use crate::ground::order::unique;
use crate::models::{self, DeviceArgs, DtypeArgs, ModelArgs, Opened, Weights};
use crate::progress::note;
use crate::runs::why_rows::Label;
use crate::view::access::Token;
use crate::view::ask::{Asker, Worker};
use crate::view::file::{self, Filter};
use crate::view::overview::{MakeOverview, Overviews};
use crate::view::page::Parts;
use crate::view::state::{Runs, Shared};
use crate::view::{ModelSlot, Server};
use palimpsest_core::engine::memory_plan::ObservedSpans;
use palimpsest_core::engine::{self, ContextLength, LocalOptions};

/// File size in MB above which the user is asked.
const LARGE: f64 = 30.0;

const TOKEN_VARIABLE: &str = "PALIMPSEST_VIEW_TOKEN";

const EXAMPLES: &str = "\
Examples:
  palimpsest view runs/first
  palimpsest view runs --port 0 --open
  palimpsest view runs/first --model smollm2-135m
  palimpsest view runs/first --verdict wrong --label 'no effect' --html failures.html
  palimpsest view runs/plain runs/cup --judge exact";

/// Open a page on runs in the browser: the finding, every answer, its attention, its effects by session, and its label.
///
/// DIR is a run folder, or a folder of several; runs may still be written, and the page follows. It is served on this machine alone, opens
/// only by the address that is printed, and loads nothing from elsewhere; Ctrl-C ends it. With --model you can ask a question again with
/// sessions hidden, removed or replaced; such trials are kept in DIR/trials.jsonl. --html writes one file instead that works without a
/// server, with all answers or those chosen by the flags below.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Run folders, or folders that hold some
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Show the verdicts of this judge, with or without its address [default: the last that could be read]
    #[arg(long, value_name = "NAME")]
    judge: Option<String>,
    /// Write one file that works without a server, and end
    #[arg(long, value_name = "FILE", help_heading = "One file")]
    html: Option<PathBuf>,
    /// Only answers of these cases
    #[arg(long = "case", value_name = "ID", requires = "html", help_heading = "One file")]
    cases: Vec<String>,
    /// Only answers to these questions, or to the questions of this group
    #[arg(long = "probe", value_name = "ID", requires = "html", help_heading = "One file")]
    probes: Vec<String>,
    /// Only answers under these conditions
    #[arg(long = "condition", value_name = "NAME", requires = "html", help_heading = "One file")]
    conditions: Vec<String>,
    /// Only answers with these verdicts: right, wrong, or another word of the table
    #[arg(long = "verdict", value_name = "VERDICT", requires = "html", help_heading = "One file")]
    verdicts: Vec<String>,
    /// Only answers with these labels of `palimpsest why`
    #[arg(long = "label", value_name = "LABEL", requires = "html", help_heading = "One file")]
    labels: Vec<String>,
    /// Only cases of these types
    #[arg(long = "type", value_name = "TYPE", requires = "html", help_heading = "One file")]
    types: Vec<String>,
    /// Write it however large it is
    #[arg(long, requires = "html", help_heading = "One file")]
    yes: bool,
    /// Ask again with this model: what --model of `run` takes, or a palimpsest server, http://host/v1#MODEL, which gives answers without
    /// log-probabilities. A model other than the run's must have the same tokenizer
    #[arg(long, value_name = "MODEL", help_heading = "Ask again")]
    model: Option<String>,
    #[command(flatten)]
    keys: KeyArgs,
    /// Most tokens of prompt and answer together [default: those of the longest answer of the runs]
    #[arg(long, value_name = "TOKENS", value_parser = super::positive, help_heading = "Ask again")]
    context: Option<usize>,
    #[command(flatten)]
    on: DeviceArgs,
    /// Form of quantised weights on the CPU
    #[arg(long, value_enum, default_value_t, help_heading = "Ask again")]
    weights: Weights,
    /// The port, 0 for a free one
    #[arg(long, default_value_t = 8765, help_heading = "Server")]
    port: u16,
    /// A loopback address of this machine
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), help_heading = "Server")]
    host: IpAddr,
    /// Listen at this Unix socket instead, which only this user can open
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port", "open"], help_heading = "Server")]
    socket: Option<PathBuf>,
    /// Open the page in the browser
    #[arg(long, help_heading = "Server")]
    open: bool,
    /// Token in the page's address: at least 16 of the characters A-Z a-z 0-9 - . _ ~. Other users can see the command line; prefer
    /// PALIMPSEST_VIEW_TOKEN, which sets it too [default: a random one at each start]
    #[arg(long, value_name = "TOKEN", help_heading = "Server")]
    token: Option<String>,
    /// Serve without a token: every user of this machine can read the runs and ask the model
    #[arg(long, conflicts_with = "token", help_heading = "Server")]
    no_token: bool,
    /// Read the page's parts from this folder at each request, for work on the page
    #[arg(long, value_name = "DIR", hide = true)]
    page: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let runs = Runs::open(&args.dirs, args.judge.clone())?;
    for entry in &runs.entries {
        if let Err(error) = &entry.run {
            note(format_args!("{}: {error}", entry.dir.display()));
        }
    }
    if let Some(path) = &args.html {
        return write_file(path, &args, Shared::new(runs));
    }
    let runs = Shared::new(runs);
    let token = token(&args)?;
    let keys = args.keys.of(args.model.as_deref())?;
    let model: Option<ModelSlot> = args.model.clone().map(|name| (name, Arc::default()));
    let stop = interrupt::flag_of_server("closing the page")?;
    let listener = listener(&args)?;
    interrupt::at_exit(listener.removal());
    let page = listener.address()?.url("/");
    let address = match &token {
        Some(token) if args.socket.is_none() => token.address(&page),
        _ => page,
    };
    let overviews = Overviews::new(overview_of(&args));
    let parts = Parts(args.page.clone());
    let server = Server::new(listener, runs.clone(), parts, overviews, model.clone(), token.as_ref())?;
    // A space after the address: terminals would take other signs into the link.
    super::say(format_args!("the page is at {address} (Ctrl-C ends it)"))?;
    // Removed when the page is closed.
    let redirect = if args.open { open(&address, token.is_some()) } else { None };
    if let Some(path) = redirect.as_ref().map(|file| file.path().to_owned()) {
        interrupt::at_exit(move || drop(std::fs::remove_file(&path)));
    }
    // Connections get their own thread; this one belongs to the compute pool and runs the model.
    let ends = Arc::clone(&stop);
    let serving = thread::Builder::new().name("serve".to_owned()).spawn(move || server.run(&ends));
    let serving = serving.context("no thread for connections")?;
    // The page is there before the model is.
    if let Some((name, slot)) = model {
        note(format_args!("loading {name}; answers can be looked at meanwhile"));
        let since = Instant::now();
        let opened = asker(&name, &keys, &args, &runs);
        let (asker, worker) = opened.inspect_err(|_| interrupt::remove_files())?;
        let _ = slot.set(asker);
        note(format_args!("{name} is ready after {:.1} s: Ask again works", since.elapsed().as_secs_f64()));
        worker.run(&stop);
    }
    match serving.join() {
        Ok(ended) => ended.context("the server ended")?,
        Err(_) => anyhow::bail!("This is a bug: the thread of connections panicked"),
    }
    note("the page is closed");
    Ok(())
}

fn overview_of(args: &Args) -> MakeOverview {
    let judge = args.judge.clone();
    Arc::new(move |dir, screen| super::report::overview(dir, judge.as_deref(), screen))
}

/// Writes the `--html` file after reporting its size, and asking if it is large.
fn write_file(path: &Path, args: &Args, runs: Shared) -> anyhow::Result<()> {
    let mut filter = Filter::default();
    filter.push(&["case"], &args.cases);
    filter.push(&["probe", "dimension"], &args.probes);
    filter.push(&["condition"], &args.conditions);
    filter.push(&["correct", "verdict"], &args.verdicts);
    // Its earlier name, which why.jsonl keeps.
    let named =
        |label: &String| if label == "not read" { Label::NoEffect.key().to_owned() } else { label.clone() };
    filter.push(&["why"], &args.labels.iter().map(named).collect::<Vec<_>>());
    filter.push(&["type"], &args.types);
    let parts = Parts(args.page.clone());
    let contents = file::contents(&runs, &parts, &filter, &overview_of(args)).context("the page's parts")?;
    let (count, of) = (contents.rows.len(), contents.of);
    ensure!(
        count > 0,
        "none of {of} answers matches; loosen --case, --probe, --condition, --verdict, --label or --type"
    );
    let megabytes = contents.bytes as f64 / 1e6;
    note(format_args!("{} will hold {count} of {of} answers, about {megabytes:.1} MB", path.display()));
    if megabytes > LARGE && !args.yes {
        ensure!(
            std::io::stdin().is_terminal() && agreed()?,
            "a file of about {megabytes:.0} MB is not written; choose answers by --verdict, --label or --case, or give --yes"
        );
    }
    let html = file::file(&runs, &parts, &contents).context("the page's parts")?;
    palimpsest_core::files::write_atomically(path, html.as_bytes())
        .with_context(|| format!("{} cannot be written", path.display()))?;
    super::say(format_args!(
        "wrote {}, {:.1} MB; open it in any browser",
        path.display(),
        html.len() as f64 / 1e6
    ))
}

fn agreed() -> anyhow::Result<bool> {
    eprint!("Write it? [y/N] ");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(["y", "yes"].contains(&line.trim().to_ascii_lowercase().as_str()))
}

/// Loads the model for the longest prompt with its answer, with the runs' dtypes if they agree.
fn asker(name: &str, keys: &Keys, args: &Args, runs: &Shared) -> anyhow::Result<(Asker, Worker)> {
    if is_address(name) {
        return Asker::of_server(name, keys);
    }
    let options = local_options(args, &runs.held())?;
    let Opened { model, digest, .. } = models::open(name, &options)?;
    for (.., run) in runs.held().readable() {
        let own = &run.run.header.identity.model;
        if own.digest != digest {
            let name = model.model_name();
            note(format_args!(
                "note: {name} is not the model of {}, which is {}; trials say so",
                run.id, own.name
            ));
        }
    }
    Ok(Asker::new(model, digest))
}

fn local_options(args: &Args, runs: &Runs) -> anyhow::Result<LocalOptions> {
    let answers =
        || runs.readable().flat_map(|(.., run)| run.rows.iter().filter_map(|facts| facts.answer.as_ref()));
    let prompt = answers().filter_map(|row| row.prompt_tokens).max().unwrap_or(0);
    let spoken = answers().filter_map(|row| row.completion_tokens).max().unwrap_or(0);
    let identities = || runs.readable().map(|(.., run)| &run.run.header.identity);
    let limit =
        identities().filter_map(|identity| Some(identity.sampling?.max_new_tokens)).max().unwrap_or(0);
    let longest = args.context.unwrap_or(prompt + spoken.max(limit).max(1));
    let formats = identities()
        .filter_map(|identity| Some((identity.dtype.as_deref()?, identity.cache_dtype.as_deref())));
    let in_dtype = match unique(formats)[..] {
        [(dtype, cache)] => {
            DtypeArgs { dtype: Some(dtype.to_owned()), cache_dtype: cache.map(str::to_owned) }
        }
        _ => DtypeArgs::default(),
    };
    Ok(LocalOptions {
        context: ContextLength::Exactly(longest),
        allow_longer: true,
        logits: engine::LOGITS_AT_ONCE,
        observed: ObservedSpans { rows: 1, keys: prompt, generated: 0, ..ObservedSpans::default() },
        hides_keys: true,
        ..ModelArgs { on: args.on.clone(), in_dtype, weights: args.weights }.options()?
    })
}

/// Falls back to a free port if the address is in use.
fn listener(args: &Args) -> anyhow::Result<Listener> {
    let address = match &args.socket {
        Some(path) => Address::Unix(path.clone()),
        None => Address::Tcp(SocketAddr::new(args.host, args.port)),
    };
    match (Listener::bind(&address), &address) {
        (Err(error), Address::Tcp(tcp)) if error.kind() == std::io::ErrorKind::AddrInUse => {
            note(format_args!("port {} is taken; another one is used", tcp.port()));
            Listener::bind(&Address::Tcp(SocketAddr::new(tcp.ip(), 0)))
        }
        (bound, _) => bound,
    }
    .with_context(|| format!("cannot listen at {address}"))
}

/// `None` with --no-token, also where the environment has one, and for a socket without a chosen one.
fn token(args: &Args) -> anyhow::Result<Option<Token>> {
    if args.no_token {
        note("without a token every user of this machine can read these runs and ask the model");
        return Ok(None);
    }
    let chosen =
        args.token.clone().or_else(|| std::env::var(TOKEN_VARIABLE).ok().filter(|text| !text.is_empty()));
    let Some(chosen) = chosen else {
        // Only this user can open the socket's file.
        if args.socket.is_some() {
            return Ok(None);
        }
        return Ok(Some(Token::random().context("the operating system gives no random bytes")?));
    };
    let token = Token::chosen(&chosen);
    ensure!(
        token.is_some(),
        "--token and {TOKEN_VARIABLE} take at least 16 of the characters A-Z a-z 0-9 - . _ ~; leave both out for a random token"
    );
    Ok(token)
}

/// Failing to open a browser is no error: the address was printed. With a token the browser gets a file that leads to the address.
fn open(address: &str, has_token: bool) -> Option<NamedTempFile> {
    let command = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let opened = has_token.then(|| redirect(address)).transpose().and_then(|file| {
        let target = file.as_ref().map_or(OsStr::new(address), |file| file.path().as_os_str());
        let started = std::process::Command::new(command)
            .arg(target)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn();
        started.map(|_| file)
    });
    opened.unwrap_or_else(|error| {
        note(format_args!("{command} cannot be run ({error}); open {address} yourself"));
        None
    })
}

/// A page that leads to `address` and that only this user can read, unlike command lines.
fn redirect(address: &str) -> std::io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("palimpsest-view-").suffix(".html").tempfile()?;
    write!(
        file,
        "<!doctype html>\n<meta charset=\"utf-8\">\n<meta name=\"referrer\" content=\"no-referrer\">\n<title>palimpsest</title>\n\
         <meta http-equiv=\"refresh\" content=\"0; url={address}\">\n<p><a href=\"{address}\">Open the page</a></p>\n"
    )?;
    Ok(file)
}
