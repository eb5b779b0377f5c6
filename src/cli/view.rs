//! `palimpsest view`: a page over run folders.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use anyhow::Context;

use super::interrupt;
use crate::progress::note;
use crate::view::Server;
use crate::view::page::Parts;
use crate::view::state::Runs;

const EXAMPLES: &str = "\
Examples:
  palimpsest view runs/first
  palimpsest view runs --port 0 --open
  palimpsest view runs/plain runs/cup --judge exact";

/// Look into runs on a page in the browser: which answers failed, what each attended to, what it owes to which session, and why.
///
/// DIR is a folder of a run, or one that holds several; they may still be written, and the page follows. It is served on this machine alone
/// and loads nothing from elsewhere; Ctrl-C ends it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Folders of runs, or folders that hold some
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Show the verdicts of this judge, with or without its address [default: the last that could be read]
    #[arg(long, value_name = "NAME")]
    judge: Option<String>,
    /// The port, 0 for a free one
    #[arg(long, default_value_t = 8765, help_heading = "Server")]
    port: u16,
    /// An address of this machine that no other can reach
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), help_heading = "Server")]
    host: IpAddr,
    /// Open the page in the browser
    #[arg(long, help_heading = "Server")]
    open: bool,
    /// Take the page's parts from this folder at each request, to change them
    #[arg(long, value_name = "DIR", hide = true)]
    page: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let runs = Runs::open(&args.dirs, args.judge.clone())?;
    for entry in &runs.entries {
        if let crate::view::state::Entry::Broken { dir, error, .. } = entry {
            note(format_args!("{}: {error}", dir.display()));
        }
    }
    let parts = args.page.map_or(Parts::Own, Parts::Folder);
    let server = Server::new(listener(SocketAddr::new(args.host, args.port))?, runs, parts)?;
    let address = format!("http://{}/", server.address()?);
    let stop = interrupt::flag_saying("closing the page")?;
    super::say(format_args!("the page is at {address}; Ctrl-C ends it"))?;
    if args.open {
        open(&address);
    }
    server.run(&stop).context("the server ended")?;
    note("the page is closed");
    Ok(())
}

/// At the address, or at a free port where something else is there.
fn listener(address: SocketAddr) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(address) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            note(format_args!("port {} is taken; another one is used", address.port()));
            TcpListener::bind(SocketAddr::new(address.ip(), 0))
        }
        bound => bound,
    }
    .with_context(|| format!("cannot listen at {address}"))
}

/// A browser that cannot be opened is no failure: the address has been said.
fn open(address: &str) {
    let command = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let opened = std::process::Command::new(command)
        .arg(address)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    if let Err(error) = opened {
        note(format_args!("{command} cannot be run ({error}); open {address} yourself"));
    }
}
