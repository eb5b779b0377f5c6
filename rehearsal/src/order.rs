//! Streams and events. [`Order`] belongs to the driver; calls resolve a stream's handle, [`Order::begin`] an operation on it and
//! [`Order::submit`] its work.
//!
//! Order is kept as vector clocks. Each stream counts its operations. An [`Op`] carries, for every stream, the last operation that has
//! certainly finished before it runs. It inherits this from the previous operation on its stream, from events its stream waited for, from
//! the host's waits before the call, and from the rules of the legacy stream. Two uses of an allocation are unordered if neither knows the
//! other: [`crate::memory`] detects them.
//!
//! By default work runs when submitted. In asynchronous mode it stays queued until the host waits for it or running work of another stream
//! needs it: the latest moment CUDA allows.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Instant;

use crate::codes::{Refusal, cuda};

/// Finished operations of each stream.
type Clock = Vec<u64>;

fn merge(into: &mut Clock, from: &Clock) {
    if into.len() < from.len() {
        into.resize(from.len(), 0);
    }
    for (mine, theirs) in into.iter_mut().zip(from) {
        *mine = (*mine).max(*theirs);
    }
}

/// An operation on a stream.
#[derive(Clone)]
pub struct Op {
    /// Name of the call or kernel.
    pub what: &'static str,
    /// Stream number.
    pub stream: usize,
    time: u64,
    clock: Clock,
}

/// An operation without its clock.
#[derive(Clone, Copy)]
pub struct Stamp {
    /// Name of the call or kernel.
    pub what: &'static str,
    /// Stream number.
    pub stream: usize,
    time: u64,
}

impl Op {
    /// The operation without its clock.
    pub fn stamp(&self) -> Stamp {
        Stamp { what: self.what, stream: self.stream, time: self.time }
    }

    /// True if `other` has certainly finished when this operation runs.
    pub fn follows(&self, other: &Stamp) -> bool {
        other.stream == HOST
            || self.stream == other.stream
            || self.clock.get(other.stream).is_some_and(|over| *over >= other.time)
    }
}

/// Stream kind: sets the implicit ordering.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Handle 0: ordered with all but the non-blocking streams of its context.
    Legacy,
    /// Handle 2, or made without flags: ordered with the legacy stream.
    Blocking,
    /// Made with `CU_STREAM_NON_BLOCKING`: ordered with none.
    NonBlocking,
}

struct Stream {
    device: usize,
    kind: Kind,
    open: bool,
    clock: Clock,
    queue: VecDeque<Work>,
    /// Work items submitted and finished.
    sent: u64,
    done: u64,
}

/// Queued work, and the work of other streams that it needs.
struct Work {
    after: Vec<(usize, u64)>,
    run: Option<Box<dyn FnOnce() + Send>>,
}

struct Event {
    device: usize,
    timed: bool,
    recorded: Option<Recorded>,
}

#[derive(Clone)]
struct Recorded {
    clock: Clock,
    stream: usize,
    upto: u64,
    when: Instant,
}

/// Counts of waits and events.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    /// Host waits for streams and contexts.
    pub synchronisations: u64,
    /// Event records.
    pub records: u64,
    /// Stream waits for events.
    pub waits: u64,
}

/// See the module documentation.
pub struct Order {
    asynchronous: bool,
    streams: Vec<Stream>,
    legacy: HashMap<usize, usize>,
    per_thread: HashMap<(usize, ThreadId), usize>,
    /// Operations the host knows to be finished.
    host: Clock,
    events: HashMap<usize, Event>,
    next_event: usize,
    /// Counters for the report.
    pub counts: Counts,
}

/// Handle of a created stream: this plus 16 × its number. Not an address, and not 0, 1 or 2.
const STREAM: usize = 0x5745_0000;
const EVENT: usize = 0xE7E0_0000;
/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// Stream number of operations by the host itself.
const HOST: usize = usize::MAX;

static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Stream name in messages.
pub fn stream_name(stream: usize) -> String {
    if stream == HOST {
        return "the host".into();
    }
    NAMES.lock().unwrap_or_else(PoisonError::into_inner).get(stream).cloned().unwrap_or_default()
}

impl Order {
    /// No streams, no events.
    pub fn new(asynchronous: bool) -> Self {
        Self {
            asynchronous,
            streams: Vec::new(),
            legacy: HashMap::new(),
            per_thread: HashMap::new(),
            host: Clock::new(),
            events: HashMap::new(),
            next_event: 0,
            counts: Counts::default(),
        }
    }

    fn open(&mut self, device: usize, kind: Kind, name: String) -> usize {
        let number = self.streams.len();
        NAMES.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{name} of device {device}"));
        self.streams.push(Stream {
            device,
            kind,
            open: true,
            clock: Clock::new(),
            queue: VecDeque::new(),
            sent: 0,
            done: 0,
        });
        number
    }

    /// Creates a stream; returns its handle.
    pub fn create_stream(&mut self, device: usize, non_blocking: bool) -> usize {
        let kind = if non_blocking { Kind::NonBlocking } else { Kind::Blocking };
        let name = format!("stream {}", self.streams.len());
        STREAM + 16 * self.open(device, kind, name)
    }

    /// Resolves a handle for a thread whose current context is on device `here`.
    pub fn stream(&mut self, handle: usize, here: usize) -> Result<usize, Refusal> {
        match handle {
            0 | LEGACY => match self.legacy.get(&here) {
                Some(stream) => Ok(*stream),
                None => {
                    let stream = self.open(here, Kind::Legacy, "the legacy stream".into());
                    self.legacy.insert(here, stream);
                    Ok(stream)
                }
            },
            PER_THREAD => {
                let key = (here, std::thread::current().id());
                match self.per_thread.get(&key) {
                    Some(stream) => Ok(*stream),
                    None => {
                        let name = format!("the per-thread stream {}", self.streams.len());
                        let stream = self.open(here, Kind::Blocking, name);
                        self.per_thread.insert(key, stream);
                        Ok(stream)
                    }
                }
            }
            _ => {
                let number = handle.wrapping_sub(STREAM) / 16;
                let known = handle >= STREAM && handle.is_multiple_of(16);
                match self.streams.get(number).filter(|stream| known && stream.open) {
                    Some(_) => Ok(number),
                    None => Err(Refusal::new(
                        cuda::CUDA_ERROR_INVALID_HANDLE,
                        format!("{handle:#x} is no stream, or one that was destroyed"),
                    )),
                }
            }
        }
    }

    /// The device of a stream.
    pub fn device(&self, stream: usize) -> usize {
        self.streams[stream].device
    }

    /// Closes a stream; queued work still runs.
    pub fn destroy_stream(&mut self, handle: usize, here: usize) -> Result<(), Refusal> {
        if handle <= PER_THREAD {
            return Err(Refusal::new(
                cuda::CUDA_ERROR_INVALID_HANDLE,
                "the default streams cannot be destroyed",
            ));
        }
        let stream = self.stream(handle, here)?;
        self.streams[stream].open = false;
        Ok(())
    }

    /// Streams that work on this one implicitly waits for.
    fn implied(&self, stream: usize) -> Vec<usize> {
        let Stream { device, kind, .. } = self.streams[stream];
        match kind {
            Kind::NonBlocking => Vec::new(),
            Kind::Blocking => self.legacy.get(&device).copied().into_iter().collect(),
            Kind::Legacy => {
                let blocking = |other: &Stream| other.device == device && other.kind == Kind::Blocking;
                (0..self.streams.len()).filter(|other| blocking(&self.streams[*other])).collect()
            }
        }
    }

    /// Begins an operation; its order is fixed now, whenever its work runs.
    pub fn begin(&mut self, stream: usize, what: &'static str) -> Op {
        let mut clock = std::mem::take(&mut self.streams[stream].clock);
        merge(&mut clock, &self.host);
        for other in self.implied(stream) {
            merge(&mut clock, &self.streams[other].clock);
        }
        if clock.len() <= stream {
            clock.resize(stream + 1, 0);
        }
        clock[stream] += 1;
        let time = clock[stream];
        self.streams[stream].clock.clone_from(&clock);
        Op { what, stream, time, clock }
    }

    /// An operation of the host itself, finished when the call returns.
    pub fn on_host(&self, what: &'static str) -> Op {
        Op { what, stream: HOST, time: 0, clock: self.host.clone() }
    }

    /// Submits an operation's work.
    pub fn submit(&mut self, op: &Op, run: impl FnOnce() + Send + 'static) {
        if self.asynchronous { self.queue(op.stream, Vec::new(), Some(Box::new(run))) } else { run() }
    }

    fn queue(&mut self, stream: usize, mut after: Vec<(usize, u64)>, run: Option<Box<dyn FnOnce() + Send>>) {
        if !self.asynchronous {
            return;
        }
        after.extend(self.implied(stream).into_iter().map(|other| (other, self.streams[other].sent)));
        after.retain(|(other, upto)| self.streams[*other].done < *upto);
        let stream = &mut self.streams[stream];
        stream.queue.push_back(Work { after, run });
        stream.sent += 1;
    }

    /// Runs a stream's work up to item `upto`, and the work of other streams it needs. Needed work was queued earlier, so this terminates.
    fn drain(&mut self, stream: usize, upto: u64) {
        while self.streams[stream].done < upto {
            let Some(Work { after, run }) = self.streams[stream].queue.pop_front() else { return };
            for (other, upto) in after {
                self.drain(other, upto);
            }
            if let Some(run) = run {
                run();
            }
            self.streams[stream].done += 1;
        }
    }

    /// The host waits for a stream.
    pub fn finish(&mut self, stream: usize) {
        self.drain(stream, self.streams[stream].sent);
        merge(&mut self.host, &self.streams[stream].clock);
    }

    /// The host waits for all streams of a device.
    pub fn finish_device(&mut self, device: usize) {
        for stream in 0..self.streams.len() {
            if self.streams[stream].device == device {
                self.finish(stream);
            }
        }
    }

    /// Runs all queued work.
    pub fn finish_all(&mut self) {
        (0..self.streams.len()).for_each(|stream| self.finish(stream));
    }

    /// Creates an event; returns its handle.
    pub fn create_event(&mut self, device: usize, timed: bool) -> usize {
        self.next_event += 1;
        let handle = EVENT + 16 * self.next_event;
        self.events.insert(handle, Event { device, timed, recorded: None });
        handle
    }

    /// Destroys an event; earlier waits for it still hold.
    pub fn destroy_event(&mut self, handle: usize) -> Result<(), Refusal> {
        self.event(handle)?;
        self.events.remove(&handle);
        Ok(())
    }

    fn event(&mut self, handle: usize) -> Result<&mut Event, Refusal> {
        self.events.get_mut(&handle).ok_or_else(|| {
            Refusal::new(
                cuda::CUDA_ERROR_INVALID_HANDLE,
                format!("{handle:#x} is no event, or one that was destroyed"),
            )
        })
    }

    /// Records an event on a stream of its device.
    pub fn record(&mut self, handle: usize, stream: usize) -> Result<(), Refusal> {
        let device = self.event(handle)?.device;
        if device != self.device(stream) {
            return Err(Refusal::new(
                cuda::CUDA_ERROR_INVALID_HANDLE,
                format!("the event is device {device}'s, and {} is not", stream_name(stream)),
            ));
        }
        self.counts.records += 1;
        let op = self.begin(stream, "cuEventRecord");
        self.queue(stream, Vec::new(), None);
        let upto = self.streams[stream].sent;
        self.event(handle)?.recorded = Some(Recorded { clock: op.clock, stream, upto, when: Instant::now() });
        Ok(())
    }

    /// A stream waits for an event's latest record; no-op for an event never recorded.
    pub fn wait(&mut self, stream: usize, handle: usize) -> Result<(), Refusal> {
        self.counts.waits += 1;
        let Some(recorded) = self.event(handle)?.recorded.clone() else { return Ok(()) };
        self.begin(stream, "cuStreamWaitEvent");
        merge(&mut self.streams[stream].clock, &recorded.clock);
        self.queue(stream, vec![(recorded.stream, recorded.upto)], None);
        Ok(())
    }

    /// The host waits for an event.
    pub fn finish_event(&mut self, handle: usize) -> Result<(), Refusal> {
        if let Some(recorded) = self.event(handle)?.recorded.clone() {
            self.drain(recorded.stream, recorded.upto);
            merge(&mut self.host, &recorded.clock);
        }
        Ok(())
    }

    /// Has the event completed? Runs the work of a pending event, so that polling terminates.
    pub fn query(&mut self, handle: usize) -> Result<bool, Refusal> {
        let over = match &self.event(handle)?.recorded {
            Some(Recorded { stream, upto, .. }) => (*stream, *upto),
            None => return Ok(true),
        };
        let ready = self.streams[over.0].done >= over.1;
        if ready {
            self.finish_event(handle)?
        } else {
            self.drain(over.0, over.1)
        }
        Ok(ready)
    }

    /// Milliseconds between two records, in host time.
    pub fn elapsed(&mut self, start: usize, end: usize) -> Result<f32, Refusal> {
        let mut when = |handle| {
            let event = self.event(handle)?;
            match &event.recorded {
                Some(recorded) if event.timed => Ok((recorded.when, recorded.stream, recorded.upto)),
                _ => Err(Refusal::new(
                    cuda::CUDA_ERROR_INVALID_HANDLE,
                    "an event without a record, or made with CU_EVENT_DISABLE_TIMING, has no time",
                )),
            }
        };
        let both = [when(start)?, when(end)?];
        if both.iter().any(|(_, stream, upto)| self.streams[*stream].done < *upto) {
            return Err(Refusal::expected(cuda::CUDA_ERROR_NOT_READY, "an event's work is still to run"));
        }
        Ok(both[1].0.saturating_duration_since(both[0].0).as_secs_f32() * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn stream(order: &mut Order, handle: usize) -> usize {
        order.stream(handle, 0).unwrap_or_else(|why| panic!("{}", why.why))
    }

    #[test]
    fn the_legacy_stream_is_ordered_with_blocking_streams_only() {
        let mut order = Order::new(false);
        let blocking = order.create_stream(0, false);
        let free = order.create_stream(0, true);
        let [legacy, thread, blocking, free] =
            [0, 2, blocking, free].map(|handle| stream(&mut order, handle));
        for (other, ordered) in [(thread, true), (blocking, true), (free, false)] {
            let before = order.begin(other, "before");
            let middle = order.begin(legacy, "middle");
            let after = order.begin(other, "after");
            assert_eq!(middle.follows(&before.stamp()), ordered);
            assert_eq!(after.follows(&middle.stamp()), ordered);
        }
        let one = order.begin(thread, "one");
        assert!(!order.begin(blocking, "two").follows(&one.stamp()));
    }

    #[test]
    fn events_order_from_their_record_on() {
        let mut order = Order::new(false);
        let (a, b) = (order.create_stream(0, true), order.create_stream(0, true));
        let [a, b] = [a, b].map(|handle| stream(&mut order, handle));
        let event = order.create_event(0, false);
        let early = order.begin(a, "early");
        assert!(order.wait(b, event).is_ok(), "a wait for an event without a record is no wait");
        assert!(!order.begin(b, "x").follows(&early.stamp()));
        assert!(order.record(event, a).is_ok());
        let late = order.begin(a, "late");
        assert!(order.wait(b, event).is_ok());
        let after = order.begin(b, "after");
        assert!(after.follows(&early.stamp()) && !after.follows(&late.stamp()));
        order.finish(a);
        assert!(order.begin(b, "y").follows(&late.stamp()), "the host waited for it");
    }

    #[test]
    fn queued_work_runs_when_needed_and_not_before() {
        let ran = Arc::new(Mutex::new(Vec::new()));
        let mut order = Order::new(true);
        let (a, b) = (order.create_stream(0, true), order.create_stream(0, true));
        let [a, b] = [a, b].map(|handle| stream(&mut order, handle));
        let event = order.create_event(0, false);
        let work = |order: &mut Order, stream, name: &'static str| {
            let op = order.begin(stream, name);
            let ran = Arc::clone(&ran);
            order.submit(&op, move || ran.lock().unwrap().push(name));
        };
        work(&mut order, a, "a1");
        assert!(order.record(event, a).is_ok());
        work(&mut order, a, "a2");
        work(&mut order, b, "b1");
        assert!(order.wait(b, event).is_ok());
        work(&mut order, b, "b2");
        assert!(ran.lock().unwrap().is_empty());
        assert!(!order.query(event).is_ok_and(|ready| ready) && order.query(event).is_ok_and(|ready| ready));
        assert_eq!(*ran.lock().unwrap(), ["a1"]);
        order.finish(b);
        assert_eq!(*ran.lock().unwrap(), ["a1", "b1", "b2"]);
        order.finish(a);
        assert_eq!(ran.lock().unwrap().last(), Some(&"a2"));
    }
}
