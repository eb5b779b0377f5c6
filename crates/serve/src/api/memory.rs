//! Memory accounting of requests. Each request reserves bytes of the plan before use, and is refused if they are exhausted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use palimpsest_core::engine::memory_plan::{ServerMemory, TOKENISING};

/// Bytes per semaphore permit of texts.
const UNIT: u64 = 1 << 10;

const MOST_TEXTS: u64 = 16;

#[derive(Debug)]
pub struct Memory {
    plan: ServerMemory,
    used: AtomicU64,
    freed: AtomicU64,
    texts: Arc<Semaphore>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// Including the bytes already held.
    pub asked: u64,
    pub most: u64,
}

/// Reserved bytes, released on drop.
#[derive(Debug)]
pub struct Held {
    memory: Arc<Memory>,
    bytes: u64,
}

impl Memory {
    pub fn new(plan: ServerMemory) -> Self {
        let units = usize::try_from(plan.tokenising / UNIT).unwrap_or(usize::MAX);
        let texts = Arc::new(Semaphore::new(units.clamp(1, Semaphore::MAX_PERMITS)));
        Memory { plan, used: AtomicU64::new(0), freed: AtomicU64::new(0), texts }
    }

    pub fn plan(&self) -> &ServerMemory {
        &self.plan
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }

    /// An empty reservation.
    pub fn hold(self: &Arc<Self>) -> Held {
        Held { memory: Arc::clone(self), bytes: 0 }
    }

    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<Held, Full> {
        let mut held = self.hold();
        held.add(bytes)?;
        Ok(held)
    }

    /// Waits for a permit to tokenise texts of `bytes` bytes.
    pub async fn place_for_texts(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let all = self.plan.tokenising;
        let wanted = bytes.saturating_mul(TOKENISING).clamp(all / MOST_TEXTS, all) / UNIT;
        // The semaphore is never closed.
        Arc::clone(&self.texts).acquire_many_owned(u32::try_from(wanted).unwrap_or(u32::MAX)).await.ok()
    }

    pub fn longest_text(&self) -> usize {
        usize::try_from(self.plan.tokenising / TOKENISING).unwrap_or(usize::MAX)
    }
}

impl Held {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves more. On failure, the reservation stays as it was.
    pub fn add(&mut self, bytes: u64) -> Result<(), Full> {
        let most = self.memory.plan.requests;
        let more = |used: u64| used.checked_add(bytes).filter(|&used| used <= most);
        match self.memory.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => {
                self.bytes += bytes;
                Ok(())
            }
            Err(_) => Err(Full { asked: self.bytes.saturating_add(bytes), most }),
        }
    }

    pub fn keep(&mut self, bytes: u64) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        self.memory.used.fetch_sub(freed, Ordering::Relaxed);
        self.memory.freed.fetch_add(freed, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keep(0);
    }
}

impl Full {
    /// True if the request exceeds the total, so that waiting does not help.
    pub fn for_ever(&self) -> bool {
        self.asked > self.most
    }

    /// Retryable error, or one for `field` with a remedy if the request can never fit.
    pub fn error(self, what: &str, field: Option<&str>, remedy: &str) -> ApiError {
        let [asked, most] = [self.asked, self.most].map(|bytes| format!("{} MiB", bytes.div_ceil(1 << 20)));
        let error = if self.for_ever() {
            let message =
                format!("{what} takes {asked} of memory, and {most} are planned for all requests; {remedy}");
            let status =
                if field.is_some() { StatusCode::BAD_REQUEST } else { StatusCode::PAYLOAD_TOO_LARGE };
            ApiError::new(status, Some("memory_exceeded"), message)
        } else {
            let message = format!(
                "{what} takes {asked} of memory, and the requests being served hold too much of their {most}; try again later, or {remedy}"
            );
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, Some("memory_full"), message).retry_after(2)
        };
        ApiError { param: field.map(str::to_owned), ..error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_given_back_and_no_more_is_taken_than_there_is() {
        let plan = ServerMemory { requests: 100, ..ServerMemory::default() };
        let memory = Arc::new(Memory::new(plan));
        let Ok(mut held) = memory.take(60) else { panic!("there are 100") };
        let refused = |asked| Some(Full { asked, most: 100 });
        assert_eq!(memory.take(41).err(), refused(41));
        assert_eq!(held.add(41).err(), refused(101));
        assert_eq!(held.add(40), Ok(()));
        assert_eq!(memory.used(), 100);
        held.keep(10);
        assert_eq!(memory.used(), 10);
        drop(held);
        assert_eq!(memory.used(), 0);
        let again = Full { asked: 41, most: 100 }.error("it", None, "ask for less");
        assert_eq!((again.status.as_u16(), again.retry_after), (429, Some(2)));
        let never = Full { asked: 101, most: 100 };
        assert_eq!(never.error("it", None, "").status.as_u16(), 413);
        assert_eq!(never.error("it", Some("n"), "").status.as_u16(), 400);
    }
}
