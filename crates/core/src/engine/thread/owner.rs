//! The scheduling loop.
//!
//! Each round starts what fits, prefills one chunk of one prompt, and runs a few decode steps, so prompts and answers do not block each
//! other. Chunks alternate between the oldest prompt and the one with the least left to read. A prompt that shares more with a prompt being
//! read than with the cache waits, so the shared part is read once. The [`Shelf`] caches prompts only: generated tokens are summed in
//! another order than prefilled ones.
//!
//! Prompts and answers share a token budget. An answer reserves its maximum length before its prompt is read, so what has started can
//! finish; the rest waits. On the CPU in f32 or bf16 answers are bit-equal under any scheduling.

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use candle_core::Tensor;

use super::Limits;
use super::load::{Gauges, Load};
use super::pending::Pending;
use super::reading::{Current, Queued, Reading, RequestId, Step};
use super::shelf::{CacheMatch, Shelf, common, loses_little};
use super::speaking::{Live, OfPrompt, Ready};
use crate::attention::{LayerHoles, SPLIT_K};
use crate::engine::request::{Choice, Event, Task};
use crate::engine::request_error::{RequestError, guarded};
use crate::engine::{Engine, EngineError};
use crate::model::{Branch, Cache, Group, Pass, branch_rows};

/// Maximum prompts read concurrently.
const MOST_READ: usize = 4;

/// Maximum seconds of a chunk while answers are being decoded.
const SECONDS_BESIDE_OTHERS: f64 = 0.25;

/// Minimum tokens of such a chunk (smaller products are slow), and its size before the prefill speed is known.
const LEAST_CHUNK: usize = 32;
const FIRST_CHUNK: usize = 128;

/// Decode gets 1 part of the time per 3 parts of prefill, and at least one step per chunk.
const READING_PARTS: u32 = 3;

/// Shared tokens beyond the cached ones that make a prompt wait for another.
const WORTH_WAITING: usize = 32;

/// Key rows a branch may take besides its generated tokens.
const OWN: usize = SPLIT_K;

/// Engine, cached prompts and requests.
pub struct EngineLoop {
    engine: Engine,
    shelf: Shelf,
    limits: Limits,
    queue: Receiver<Queued>,
    waiting: VecDeque<Queued>,
    reading: Vec<Reading>,
    ready: VecDeque<Ready>,
    live: Vec<Live>,
    rounds: usize,
    /// Prefill speed in tokens per second, once known.
    pace: Option<f64>,
    gauges: Arc<Gauges>,
}

impl EngineLoop {
    pub(super) fn new(
        engine: Engine,
        cache: Cache,
        limits: Limits,
        queue: Receiver<Queued>,
        gauges: Arc<Gauges>,
    ) -> Self {
        let work = EngineLoop {
            engine,
            shelf: Shelf::new(cache),
            limits,
            queue,
            waiting: VecDeque::new(),
            reading: Vec::new(),
            ready: VecDeque::new(),
            live: Vec::new(),
            rounds: 0,
            pace: None,
            gauges,
        };
        work.limited(limits)
    }

    /// Runs until all handles are dropped. Holds a worker of the compute pool during a round only, unless the caller is one itself.
    pub fn run(mut self) {
        while self.listen(true) {
            self.guarded_round();
        }
    }

    /// Runs one round if there is work; returns whether more remains.
    pub fn turn(&mut self) -> bool {
        self.listen(false);
        if !self.idle() {
            self.guarded_round();
        }
        !self.idle()
    }

    /// Replaces the limits; call before any request.
    #[must_use]
    pub fn limited(mut self, limits: Limits) -> Self {
        self.limits = limits.fitting(self.shelf.context());
        self.shelf.keep(self.limits.prompts);
        self.gauges.update(|load| load.room = self.limits.tokens);
        self
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Clears cached prompts.
    pub fn forget(&mut self) {
        self.shelf.clear();
    }

    fn guarded_round(&mut self) {
        // Request errors are handled where they occur. After a panic elsewhere, running requests fail and others are served.
        let round = panic::catch_unwind(AssertUnwindSafe(|| rayon::scope(|_| self.round())));
        if round.is_err() {
            self.live.clear();
            self.ready.clear();
            self.reading.clear();
            self.shelf.clear();
        }
        self.report();
    }

    /// Drains the queue; blocks when idle if `wait`. Returns false if all handles are gone.
    fn listen(&mut self, wait: bool) -> bool {
        if wait && self.idle() {
            let Ok(queued) = self.queue.recv() else { return false };
            self.enqueue(queued);
        }
        loop {
            match self.queue.try_recv() {
                Ok(queued) => self.enqueue(queued),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return !self.idle(),
            }
        }
    }

    fn idle(&self) -> bool {
        self.waiting.is_empty() && self.reading.is_empty() && self.ready.is_empty() && self.live.is_empty()
    }

    fn enqueue(&mut self, queued: Queued) {
        let choices = queued.tasks();
        self.waiting.push_back(queued);
        self.report();
        self.gauges.queued.fetch_sub(choices, Ordering::Relaxed);
    }

    fn report(&mut self) {
        let waiting = self.waiting.iter().map(Queued::tasks).sum::<usize>()
            + self.ready.iter().map(|ready| ready.choices.len()).sum::<usize>();
        let (running, taken) = (self.live.len() + self.reading.len(), self.shelf.taken() + self.set_aside());
        let (cached, prompts) = (self.shelf.held(), self.shelf.len());
        let evicted = self.shelf.take_evicted() as u64;
        self.gauges.update(|load| {
            *load =
                Load { running, waiting, cached, taken, prompts, evicted: load.evicted + evicted, ..*load };
        });
    }

    fn round(&mut self) {
        self.rounds += 1;
        self.wake();
        self.begin_ready();
        self.begin_waiting();
        self.report();
        let reading = Instant::now();
        self.read();
        // New answers take their first step with the others.
        self.begin_ready();
        let (read, generating) = (reading.elapsed(), Instant::now());
        loop {
            let any = self.generate();
            let enough = self.reading.iter().all(|reading| reading.waits)
                || generating.elapsed() * READING_PARTS >= read;
            if !any || enough || read == Duration::ZERO {
                break;
            }
        }
        let stay = self.pinned();
        self.shelf.sweep(&stay);
    }

    /// Branches of answers that run or wait for a slot, with their request and trunk.
    fn branches(&self) -> impl Iterator<Item = (RequestId, u64, &Branch)> {
        let live = self.live.iter().map(|live| (live.id, live.trunk, &live.branch));
        live.chain(self.ready.iter().map(|ready| (ready.id, ready.trunk, &ready.branch)))
    }

    /// Trunks that answers read.
    fn pinned(&self) -> Vec<u64> {
        self.branches().map(|(_, trunk, _)| trunk).collect()
    }

    /// Resumes requests whose current answers have ended.
    fn wake(&mut self) {
        let answering: Vec<RequestId> = self.branches().map(|(id, ..)| id).collect();
        for reading in self.reading.iter_mut().filter(|reading| reading.waits) {
            reading.waits = answering.contains(&reading.id);
        }
    }

    /// True while an answer waits to decode together with later branches of its request.
    fn is_held(&self, live: &Live) -> bool {
        self.reading.iter().any(|reading| reading.id == live.id && !reading.waits)
    }

    /// Tokens reserved by answers.
    fn set_aside(&self) -> usize {
        let reading = self.reading.iter().map(|reading| reading.room() + 2 * OWN);
        self.branches().map(|(.., branch)| branch.rows()).chain(reading).sum()
    }

    /// Starts answers to prompts that were read, within the limits.
    fn begin_ready(&mut self) {
        let under_way = self.reading.iter().filter(|reading| !reading.waits).count();
        while self.live.len() + under_way < self.limits.parallel {
            let Some(mut ready) = self.ready.pop_front() else { return };
            let Some(choice) = ready.choices.pop_front() else { continue };
            // The last answer takes over the branch.
            let needed = if ready.choices.is_empty() { 0 } else { choice.task.room() + OWN };
            let set_aside = self.set_aside() + ready.branch.rows();
            let mut stay = self.pinned();
            stay.push(ready.trunk);
            let most = self.limits.tokens.saturating_sub(set_aside + needed);
            let fits = needed == 0 || self.shelf.make_room(most, 0, &stay);
            if !fits && (!self.live.is_empty() || !self.reading.is_empty()) {
                ready.choices.push_front(choice);
                self.ready.push_front(ready);
                return;
            }
            let (live, left) = ready.begin(choice);
            self.live.extend(live);
            if let Some(left) = left {
                self.ready.push_front(left);
            }
        }
    }

    /// Drops what was cancelled of the waiting prompts, and starts reading others, within the limits.
    fn begin_waiting(&mut self) {
        // Cancelled tasks take no memory beyond the round.
        let context = self.shelf.context();
        self.waiting.retain_mut(|queued| {
            queued.check(context);
            !queued.branches.is_empty()
        });
        let mut passed = Vec::new();
        while self.reading.len() < MOST_READ
            && self.live.len() + self.reading.len() < self.limits.parallel
            && self.ready.is_empty()
            && let Some(at) = self.next_waiting(&passed)
            && let Some(queued) = self.waiting.remove(at)
        {
            let first = queued.first_to_read(&self.engine);
            let prompt = queued.prompt();
            let scope = queued.id.caller.scope();
            let found = self.shelf.longest_match(scope, prompt, first, |at| queued.border(at, &self.engine));
            let found = match queued.reused(found.kept) {
                0 => found.anew(),
                kept => CacheMatch { kept, ..found },
            };
            // Wait for a prompt of the scope that shares more than the cache, or whose trunk can be continued afterwards.
            let shares = |reading: &Reading| {
                let more = common(reading.tokens(), prompt).min(first) > found.kept + WORTH_WAITING;
                reading.id.caller.scope() == scope
                    && (more
                        || (found.trunk == Some(reading.trunk)
                            && loses_little(reading.tokens().len(), found.kept)))
            };
            if self.reading.iter().any(shares) {
                passed.push(queued.id);
                self.waiting.insert(at, queued);
                continue;
            }
            match self.make_room(&queued, found) {
                Some((found, room)) => self.begin_reading(queued, &found, room),
                None => return self.waiting.insert(at, queued),
            }
        }
    }

    /// The next request, except `passed`: from the caller with the fewest running requests, then the oldest; one prompt per caller.
    fn next_waiting(&self, passed: &[RequestId]) -> Option<usize> {
        let reads = |caller| self.reading.iter().any(|reading| reading.id.caller == caller);
        let under_way = |caller| self.branches().filter(|(id, ..)| id.caller == caller).count();
        let waiting = self.waiting.iter().map(|queued| queued.id).enumerate();
        let free = waiting.filter(|(_, id)| !passed.contains(id) && !reads(id.caller));
        free.min_by_key(|(_, id)| under_way(id.caller)).map(|(at, _)| at)
    }

    /// Makes room for a prompt and its first answer. Falls back to a shorter match, then to a trunk without spare room; `None`: wait.
    fn make_room(&mut self, queued: &Queued, found: CacheMatch) -> Option<(CacheMatch, usize)> {
        let (tokens, room) = (queued.tokens(), queued.room());
        let mut stay = self.pinned();
        let free = self.limits.tokens.saturating_sub(self.set_aside() + room + 2 * OWN);
        // Kept keys count as far as the budget goes: one request always fits.
        let free = free - queued.copied().min(free.saturating_sub(tokens));
        let idle = |id| self.shelf.get(id).is_some_and(|trunk| !trunk.busy);
        let inside = CacheMatch { within: found.trunk.is_some_and(idle), ..found };
        let mut ways = vec![found, inside, found.anew()];
        ways.dedup();
        let roomy = self.shelf.room(tokens);
        let pinned = stay.len();
        ways.into_iter().find_map(|found| {
            // Running branches copy what they read of a trunk that is continued.
            let kept = found.kept - found.kept % SPLIT_K;
            let readers = self.branches().filter(|(_, trunk, _)| found.within && Some(*trunk) == found.trunk);
            let copied: usize = readers.map(|(.., branch)| branch.start().saturating_sub(kept)).sum();
            let cost = |room: usize| self.shelf.cost(&found, tokens, room) + copied;
            // Nothing is evicted for spare room.
            let room = if self.shelf.taken() + cost(roomy) <= free { roomy } else { tokens };
            let most = free.checked_sub(cost(room))?;
            stay.truncate(pinned);
            stay.extend(found.trunk);
            self.shelf.make_room(most, usize::from(!found.within), &stay).then_some((found, room))
        })
    }

    fn begin_reading(&mut self, queued: Queued, found: &CacheMatch, room: usize) {
        let taken =
            self.leave_trunk(found).and_then(|()| Ok(self.shelf.take(found, queued.tokens(), room)?));
        let id = match taken {
            Ok(id) => id,
            Err(error) => return queued.end(&error),
        };
        let Some(trunk) = self.shelf.get(id) else { return };
        self.gauges.update(|load| load.found += trunk.cache.len() as u64);
        self.reading.push(Reading::new(queued, &self.engine, trunk, found.common));
    }

    /// Moves running branches off the part of a trunk that is about to be overwritten.
    fn leave_trunk(&mut self, found: &CacheMatch) -> Result<(), RequestError> {
        let Some(id) = found.trunk.filter(|_| found.within) else { return Ok(()) };
        let Some(trunk) = self.shelf.get(id) else { return Ok(()) };
        let live = self.live.iter_mut().map(|live| (live.trunk, &mut live.branch));
        let branches = live.chain(self.ready.iter_mut().map(|ready| (ready.trunk, &mut ready.branch)));
        for (_, branch) in branches.filter(|(trunk, _)| *trunk == id) {
            branch.rebase(&trunk.cache, found.kept)?;
        }
        Ok(())
    }

    /// Prefills a chunk of the oldest prompt, or of the one with the least left.
    fn read(&mut self) {
        let left = |reading: &Reading| {
            let held = self.shelf.get(reading.trunk).map_or(0, |trunk| trunk.tokens.len());
            reading.tokens().len().saturating_sub(held)
        };
        let going = (0..self.reading.len()).filter(|&at| !self.reading[at].waits);
        let at = match self.rounds.is_multiple_of(2) {
            true => going.min_by_key(|&at| left(&self.reading[at])),
            false => going.min_by_key(|&at| self.reading[at].begun),
        };
        let Some(at) = at else { return };
        let beside = self.live.iter().any(|live| !self.is_held(live));
        let in_time = |pace: f64| ((pace * SECONDS_BESIDE_OTHERS) as usize).max(LEAST_CHUNK);
        let most = if beside { self.pace.map_or(FIRST_CHUNK, in_time) } else { usize::MAX };
        let chunk = self.engine.chunk().min(most);
        // The next branch must not overwrite trunk keys that running answers of its request still read.
        let (request, kept) = (self.reading[at].id, self.reading[at].next_kept().unwrap_or(usize::MAX));
        let waits = self.branches().any(|(id, _, branch)| id == request && branch.start() > kept);
        let begun = Instant::now();
        let reading = &mut self.reading[at];
        if waits {
            reading.waits = true;
            return;
        }
        let id = reading.trunk;
        let Some(trunk) = self.shelf.get_mut(id) else { return };
        let engine = &self.engine;
        match guarded(|| reading.step(engine, trunk, chunk)) {
            Ok(Step::Nothing) => {}
            Ok(Step::Read(read)) => {
                self.count(read, begun);
                self.reading[at].tell(read);
            }
            Ok(Step::Whole(read, whole)) => {
                self.count(read, begun);
                let (logits, current) = *whole;
                self.whole(at, &logits, current, read);
            }
            Ok(Step::Force(group)) => self.force(at, group),
            Err(error) => return self.lose(at, &error),
        }
        if self.reading.get(at).is_some_and(|reading| reading.trunk == id && reading.is_done()) {
            self.reading.remove(at);
            let stay = self.pinned();
            self.shelf.give_back(id, &stay);
        }
    }

    /// Counts prefilled tokens and updates the speed.
    fn count(&mut self, read: usize, begun: Instant) {
        self.gauges.update(|load| load.read += read as u64);
        if read >= LEAST_CHUNK {
            self.pace = Some(read as f64 / begun.elapsed().as_secs_f64().max(1e-6));
        }
    }

    fn lose(&mut self, at: usize, error: &RequestError) {
        let reading = self.reading.remove(at);
        self.shelf.bury(reading.trunk);
        self.report();
        reading.end(error);
    }

    /// Finishes a prompt: reports prompt-only tasks, then starts its answers on a branch of the trunk.
    fn whole(&mut self, at: usize, logits: &Tensor, mut current: Current, read: usize) {
        let kept = current.branch.kept;
        let (request, id) = (self.reading[at].id, self.reading[at].trunk);
        current.branch.tell(|| Event::Prefilled(read));
        let dirty = !current.branch.knockouts.is_empty();
        let (prompt, choices) = match OfPrompt::new(logits, current) {
            Ok(made) => made,
            Err((choices, error)) => return end_all(choices, &error),
        };
        let Some(trunk) = self.shelf.get_mut(id) else { return end_all(choices, &RequestError::Gone) };
        // 1. Tasks without generation.
        let (answers, others): (Vec<Choice>, Vec<Choice>) =
            choices.into_iter().partition(|choice| matches!(choice.task, Task::Generate(_)));
        let mut outcomes = Vec::new();
        for mut choice in others {
            self.gauges.update(|load| load.read += choice.task.scored() as u64);
            let outcome = prompt.outcome(&self.engine, &mut trunk.cache, &mut choice);
            outcomes.push((choice, outcome));
        }
        // 2. Answers. Copy the branch's own keys if other branches are still to be read into the trunk.
        let room = answers.iter().map(|choice| choice.task.room()).max().unwrap_or(0);
        let last = self.reading[at].pending.is_empty();
        let copied = branch_rows(kept, trunk.cache.len() - kept + room);
        let most = self.limits.tokens.saturating_sub(self.set_aside() + copied);
        let mut stay = self.pinned();
        stay.push(id);
        // Evict unused prompts before running answers one after the other.
        let alone = !last && !self.shelf.make_room(most, 0, &stay);
        let Some(trunk) = self.shelf.get_mut(id) else { return end_all(answers, &RequestError::Gone) };
        let branch = trunk.cache.branch(if last || alone { trunk.cache.len() } else { kept }, room);
        if dirty {
            // Keys computed under knockouts are not reusable.
            trunk.tokens.truncate(kept);
        }
        let mut begun = Vec::new();
        for mut choice in answers {
            match choice.hear_of_prompt(Event::Prompt) {
                Ok(()) => begun.push(choice),
                Err(error) => outcomes.push((choice, Err(error))),
            }
        }
        match branch {
            Err(error) => end_all(begun, &error.into()),
            Ok(_) if begun.is_empty() => {}
            Ok(branch) => {
                let generated = begun.len();
                self.ready.push_back(Ready::new(request, id, branch, prompt, begun));
                // 3. The next branch, if its answers can run beside these.
                let live = self.live.iter().filter(|live| live.id == request).count();
                let ready = self.ready.iter().filter(|ready| ready.id == request);
                let beside = live + ready.map(|ready| ready.choices.len()).sum::<usize>();
                let reading = &mut self.reading[at];
                let next = reading.pending.front().map_or(0, Pending::generates);
                reading.waits = !last && (alone || generated > 1 || beside + next > self.limits.parallel);
            }
        }
        self.report();
        outcomes.into_iter().for_each(|(choice, outcome)| choice.end(outcome));
    }

    /// Runs branches that force the same tokens in one batch and reports the logits.
    fn force(&mut self, at: usize, mut group: Vec<Pending>) {
        let id = self.reading[at].trunk;
        let (Some(first), Some(trunk)) = (group.first(), self.shelf.get_mut(id)) else { return };
        let Some(forced) = first.forced().cloned() else { return };
        let held = trunk.cache.len();
        let Some((_, before)) = forced.split_last() else {
            return group.into_iter().for_each(|branch| branch.end(&EngineError::EmptyPrompt.into()));
        };
        let tokens = [first.prompt.get(held..).unwrap_or_default(), before].concat();
        self.gauges.update(|load| load.read += (tokens.len() * group.len()) as u64);
        let holes: Vec<LayerHoles> = group.iter().map(|branch| branch.knockouts.clone()).collect();
        let mut failed: Vec<Option<RequestError>> = group.iter().map(|_| None).collect();
        let mut choices: Vec<&mut Choice> =
            group.iter_mut().filter_map(|branch| branch.choices.first_mut()).collect();
        let mut take = |nth: usize, from, logits| {
            if let (Some(choice), Some(failed @ None)) = (choices.get_mut(nth), failed.get_mut(nth)) {
                *failed = choice.hear_of_prompt(Event::Logits(from, logits)).err();
            }
        };
        let wanted = (&*tokens, forced.len());
        let read = guarded(|| self.engine.read_variants(&mut trunk.cache, wanted, &holes, &mut take));
        if let Err(error) = read {
            group.into_iter().for_each(|branch| branch.end(&error));
            // Logits that are not finite leave the cache unchanged.
            if !matches!(error, RequestError::Engine(EngineError::NotFinite { .. })) {
                self.lose(at, &error);
            }
            return;
        }
        for (branch, failed) in group.into_iter().zip(failed) {
            let prompt = OfPrompt::forced(&branch, held);
            for choice in branch.choices {
                let measured = prompt.unanswered(&self.engine);
                choice.end(failed.as_ref().map_or(measured, |error| Err(error.again())));
            }
        }
    }

    /// Chooses one token per answer, then runs all continuing answers in one forward pass. Returns whether any continued.
    fn generate(&mut self) -> bool {
        // 1. One token each, or the end. Continuing answers stay in `live` while others report their end, so the gauges count them.
        let (held, speaking): (Vec<Live>, Vec<Live>) =
            std::mem::take(&mut self.live).into_iter().partition(|live| self.is_held(live));
        let stay = held.len();
        self.live = held;
        let mut ended = Vec::new();
        for mut live in speaking {
            match live.choose() {
                Ok(true) => self.live.push(live),
                outcome => ended.push((live, outcome.map(|_| ()))),
            }
        }
        self.end(ended);
        let mut going = self.live.split_off(stay);
        // Group branches of the same trunk and start.
        going.sort_by_key(|live| (live.trunk, live.branch.start()));
        if going.is_empty() {
            return false;
        }

        // 2. One forward pass.
        let tokens: Vec<u32> = going.iter().filter_map(|live| live.decoding.unread()).collect();
        let keys: Vec<(u64, usize)> = going.iter().map(|live| (live.trunk, live.branch.start())).collect();
        let mut parts: Vec<_> = going.iter_mut().map(Live::parts).collect();
        let mut groups = Vec::<Group<'_>>::new();
        let mut before = None;
        for ((branch, watch, knockouts), key) in parts.iter_mut().zip(keys) {
            let row: (&mut Branch, Pass<'_>) = (branch, Pass::from(watch).hiding(knockouts));
            match groups.last_mut() {
                Some((_, rows)) if before == Some(key) => rows.push(row),
                _ => groups.extend(self.shelf.get(key.0).map(|trunk| (&trunk.cache, vec![row]))),
            }
            before = Some(key);
        }
        self.gauges.update(|load| {
            load.steps += 1;
            load.stepped += tokens.len() as u64;
        });
        let read = guarded(|| self.engine.step(&tokens, groups));
        drop(parts);
        // After a common error none can continue: some layers have already appended their tokens.
        let read: Vec<_> = match read {
            Ok(read) => read.into_iter().map(|logits| logits.map_err(RequestError::from)).collect(),
            Err(error) => going.iter().map(|_| Err(error.again())).collect(),
        };
        let mut ended = Vec::new();
        for (mut live, logits) in going.into_iter().zip(read) {
            match logits {
                Ok(logits) => {
                    live.decoding.take(logits);
                    self.live.push(live);
                }
                Err(error) => ended.push((live, Err(error))),
            }
        }
        self.end(ended);
        true
    }

    /// Reports finished answers after updating the gauges.
    fn end(&mut self, ended: Vec<(Live, Result<(), RequestError>)>) {
        if !ended.is_empty() {
            self.report();
        }
        ended.into_iter().for_each(|(live, outcome)| live.end(&self.engine, outcome));
    }
}

fn end_all(choices: Vec<Choice>, error: &RequestError) {
    for choice in choices {
        choice.end(Err(error.again()));
    }
}
