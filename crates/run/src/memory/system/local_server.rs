//! Serves a local model to memory systems: runs `palimpsest serve` as a child process, started at the first request.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, PoisonError};

use super::supervisor::own_command;
use super::transport::append_to;

#[derive(Debug)]
pub struct LocalServer {
    model: String,
    log: PathBuf,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    served: Served,
}

/// A running server, as its clients need it.
#[derive(Debug, Clone)]
pub struct Served {
    /// `http://127.0.0.1:41234/v1`
    pub base: String,
    /// The model's name there.
    pub model: String,
    pub key: String,
}

impl LocalServer {
    /// `model` is a name, folder or file; `log` receives stderr.
    pub fn new(model: &str, log: &Path) -> Self {
        LocalServer { model: model.to_owned(), log: log.to_owned(), running: Mutex::default() }
    }

    pub fn model(&self) -> &str {
        &self.model
    }

    pub fn served(&self) -> Result<Served, String> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = running.as_mut()
            && matches!(server.child.try_wait(), Ok(None))
        {
            return Ok(server.served.clone());
        }
        let server = self.start()?;
        Ok(running.insert(server).served.clone())
    }

    fn start(&self) -> Result<Running, String> {
        let failed = |why: String| {
            format!(
                "the model {} cannot be served: {why}; the server's log is {}",
                self.model,
                self.log.display()
            )
        };
        let mut command =
            own_command().ok_or_else(|| failed("the command palimpsest is not known here".to_owned()))?;
        let log = append_to(&self.log);
        let log = log.map_err(|e| failed(e.to_string()))?;
        command.args(["serve", &self.model, "--port", "0", "--log", "off", "--while-input"]);
        // The environment's key is for other servers.
        let key = format!("{:032x}", rand::random::<u128>());
        command.env("PALIMPSEST_API_KEY", &key);
        // Away from the terminal's group: Ctrl-C lets the session under way end, which needs its model.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        // The server exits when its stdin closes, so it ends with this process.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
        let said = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        // The server prints its address when ready.
        match said.map_while(Result::ok).find_map(|line| address(&line)) {
            Some((base, model)) => Ok(Running { child, served: Served { base, model, key } }),
            None => {
                let _ = child.kill();
                let status = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
                Err(failed(format!("it ended with {status}")))
            }
        }
    }
}

/// Base URL and model name in the line that the server prints.
fn address(line: &str) -> Option<(String, String)> {
    let (model, rest) = line.split_once(" is served at ")?;
    let base = rest.split(',').next()?;
    base.ends_with("/v1").then(|| (base.to_owned(), model.to_owned()))
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(Running { child, .. }) = running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn the_servers_first_line_holds_its_name_and_address() {
        let line =
            "smollm2-135m is served at http://127.0.0.1:41234/v1, 8192 tokens of context, 4 answers at once";
        let expected = ("http://127.0.0.1:41234/v1".to_owned(), "smollm2-135m".to_owned());
        assert_eq!(address(line), Some(expected));
        assert_eq!(address("loading"), None);
    }
}
