//! Memory systems over HTTP: one POST per message of the wire format.

use std::time::Duration;

use ureq::Agent;
use ureq::http::header::CONTENT_TYPE;

use super::protocol::{Failure, FailureKind};
use super::wire::Transport;

const LONGEST_REPLY: u64 = 256 << 20;

const CONNECT: Duration = Duration::from_secs(10);

/// A URL. Its server is started and stopped by its owner.
pub struct Address {
    url: String,
    agent: Agent,
}

impl Address {
    pub fn new(url: &str) -> Self {
        let config = Agent::config_builder().http_status_as_error(false).timeout_connect(Some(CONNECT));
        Address { url: url.to_owned(), agent: config.build().into() }
    }

    pub fn is_one(command: &str) -> bool {
        command.starts_with("http://") || command.starts_with("https://")
    }
}

impl Transport for Address {
    fn start(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn exchange(&mut self, message: &[u8], limit: Duration) -> Result<Vec<u8>, Failure> {
        let request = self.agent.post(&self.url).header(CONTENT_TYPE, "application/json");
        let request = request.config().timeout_global(Some(limit)).build();
        let fault = |error: ureq::Error| match error {
            ureq::Error::Timeout(_) => Failure {
                kind: FailureKind::TimedOut,
                message: format!("{}: no reply within {} s", self.url, limit.as_secs_f64()),
            },
            error => Failure {
                kind: FailureKind::Dead,
                message: format!("{}: {error}; is the memory system running there?", self.url),
            },
        };
        let mut response = request.send(message).map_err(fault)?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(LONGEST_REPLY).read_to_vec().map_err(fault)?;
        // A system's error may have any HTTP status; a non-JSON error page comes from a gateway.
        if !status.is_success() && !body.trim_ascii_start().starts_with(b"{") {
            let text = String::from_utf8_lossy(&body);
            let quoted: String = text.chars().take(200).collect();
            let message =
                format!("{} answers {status}: {quoted}; is it the address of a memory system?", self.url);
            return Err(Failure { kind: FailureKind::Nonsense, message });
        }
        Ok(body)
    }

    fn stop(&mut self) {}
}
