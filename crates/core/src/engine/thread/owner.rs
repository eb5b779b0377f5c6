//! The thread's loop: reads prompts chunk by chunk and generates all continuations together, round after round.
//!
//! A round begins what there is room for, reads a chunk of one prompt, and lets those that are being generated take a step or a few:
//! a long prompt does not keep them waiting, and they do not keep it. Several prompts are read in turn, now the one that came first
//! and now the one that has least to go, so that a short one does not wait for a long one either; but one that shares more with a
//! prompt under way than with what is kept waits for that one, and what both share is read once. What is kept of prompts is the
//! [`Shelf`]'s; answers are no part of it, since generated tokens are summed in another order than read ones.
//!
//! Prompts and continuations share a budget of tokens. A continuation sets aside all that it may generate before its prompt is read,
//! so that what has begun can always end; what does not fit waits. Whoever waits, whatever is kept and whoever else is served:
//! on the CPU in f32 or bf16 an answer has the same bits.

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use super::Limits;
use super::load::{Gauges, Load};
use super::reading::{Pending, Queued, Reading, RequestId, Step, WholePrompt};
use super::shelf::{CacheMatch, Shelf, common, loses_little};
use super::speaking::{Live, OfPrompt, Ready};
use crate::attention::{LayerHoles, SPLIT_K};
use crate::engine::request::{Choice, Event, Task};
use crate::engine::request_error::RequestError;
use crate::engine::{Engine, EngineError};
use crate::model::{Branch, Cache, Group, Pass, branch_rows};

/// Prompts that are read in turn, at most.
const MOST_READ: usize = 4;

/// Seconds that a chunk may take while others are being generated, whose next tokens come after it.
const SECONDS_BESIDE_OTHERS: f64 = 0.25;

/// Tokens of such a chunk at least, below which products are slow; and before it is known how fast prompts are read.
const LEAST_CHUNK: usize = 32;
const FIRST_CHUNK: usize = 128;

/// Decoding gets one part of the time for so many parts of reading, and a step a chunk at least.
const READING_PARTS: u32 = 3;

/// Tokens that a prompt must share with one under way, beyond what is kept, to wait for it.
const WORTH_WAITING: usize = 32;

/// Rows of keys that a branch may take beside what it generates.
const OWN: usize = SPLIT_K;

/// The engine, what it keeps, and whom it serves.
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
    /// Tokens of prompts that are read in a second, once it is known.
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
        let limits = limits.fitting(cache.capacity());
        let shelf = Shelf::new(cache, limits.prompts);
        gauges.update(|load| load.room = limits.tokens);
        EngineLoop {
            engine,
            shelf,
            limits,
            queue,
            waiting: VecDeque::new(),
            reading: Vec::new(),
            ready: VecDeque::new(),
            live: Vec::new(),
            rounds: 0,
            pace: None,
            gauges,
        }
    }

    /// Serves requests until nobody can ask any more. A worker of the pool that computes is held during a round and not between
    /// requests; a caller that is one itself is held all the time.
    pub fn run(mut self) {
        while self.listen(true) {
            self.guarded_round();
        }
    }

    /// One round of what was asked, if anything was; whether there is more to do.
    pub fn turn(&mut self) -> bool {
        self.listen(false);
        if !self.idle() {
            self.guarded_round();
        }
        !self.idle()
    }

    /// The same within other limits; nothing is under way yet.
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

    /// Drops all that is kept of prompts.
    pub fn forget(&mut self) {
        self.shelf.clear();
    }

    fn guarded_round(&mut self) {
        // Errors of one request are caught where they happen. This is for others: those under way hear that they
        // were left, and others are served.
        let round = panic::catch_unwind(AssertUnwindSafe(|| rayon::scope(|_| self.round())));
        if round.is_err() {
            self.live.clear();
            self.ready.clear();
            self.reading.clear();
            self.shelf.clear();
        }
        self.report();
    }

    /// Takes what was asked; waits for it where nothing else is to be done, if it is to wait. Returns whether anybody is there.
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

    /// Tells the gauges how things stand.
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
        // Answers to what was just read take their first step with the others.
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
        let stays = pinned(&self.live, &self.ready);
        self.shelf.sweep(|id| stays.contains(&id));
    }

    /// Lets requests go on to their next branches whose answers have ended.
    fn wake(&mut self) {
        for reading in self.reading.iter_mut().filter(|reading| reading.waits) {
            let answering = self.live.iter().any(|live| live.id == reading.id);
            reading.waits = answering || self.ready.iter().any(|ready| ready.id == reading.id);
        }
    }

    /// Requests that are being read.
    fn under_way(&self) -> usize {
        self.reading.iter().filter(|reading| !reading.waits).count()
    }

    /// True while an answer waits for the other branches of its request to be read, to be generated together with theirs.
    fn is_held(&self, live: &Live) -> bool {
        self.reading.iter().any(|reading| reading.id == live.id && !reading.waits)
    }

    /// Tokens of memory that continuations have set aside.
    fn set_aside(&self) -> usize {
        let live = self.live.iter().map(|live| live.branch.rows());
        let ready = self.ready.iter().map(|ready| ready.branch.rows());
        let reading = self.reading.iter().map(|reading| reading.room() + 2 * OWN);
        live.chain(ready).chain(reading).sum()
    }

    /// Begins answers to prompts that were read, where there is a place for them.
    fn begin_ready(&mut self) {
        while self.live.len() + self.under_way() < self.limits.parallel {
            let Some(mut ready) = self.ready.pop_front() else { return };
            let Some(choice) = ready.choices.pop_front() else { continue };
            // The last one takes the branch that is there.
            let needed = if ready.choices.is_empty() { 0 } else { choice.task.room() + OWN };
            let set_aside = self.set_aside() + ready.branch.rows();
            let mut stays = pinned(&self.live, &self.ready);
            stays.push(ready.trunk);
            let most = self.limits.tokens.saturating_sub(set_aside + needed);
            let fits = needed == 0 || self.shelf.make_room(most, 0, |id| stays.contains(&id));
            let alone = self.live.is_empty() && self.reading.is_empty();
            if !fits && !alone {
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

    /// Begins to read prompts that wait, where there is a place for them.
    fn begin_waiting(&mut self) {
        let mut passed = Vec::new();
        while self.reading.len() < MOST_READ
            && self.live.len() + self.reading.len() < self.limits.parallel
            && self.ready.is_empty()
            && let Some(at) = self.next_waiting(&passed)
            && let Some(mut queued) = self.waiting.remove(at)
        {
            // Those who do not wait any more cost nothing.
            queued.check(self.shelf.context());
            if queued.branches.is_empty() {
                continue;
            }
            let first = queued.first_to_read(&self.engine);
            let prompt = queued.prompt();
            let found = self.shelf.longest_match(prompt, first, |at| queued.border(at, &self.engine));
            let found = match queued.reused(found.kept) {
                0 => CacheMatch { trunk: None, kept: 0, within: false, ..found },
                kept => CacheMatch { kept, ..found },
            };
            // One that shares more than what is kept, and one whose trunk can be gone on in when it is done with it.
            let shares = |reading: &Reading| {
                common(reading.tokens(), prompt).min(first) > found.kept + WORTH_WAITING
                    || (found.trunk == Some(reading.trunk)
                        && loses_little(reading.tokens().len(), found.kept))
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

    /// The waiting request that is begun next, none of those `passed`: of the caller with the fewest requests under way, and of several
    /// such callers the one that came first. A caller's prompts are read one after the other, so that many of one caller keep no other
    /// caller waiting.
    fn next_waiting(&self, passed: &[RequestId]) -> Option<usize> {
        let reads = |caller| self.reading.iter().any(|reading| reading.id.caller == caller);
        let under_way = |caller| {
            self.live.iter().filter(|live| live.id.caller == caller).count()
                + self.ready.iter().filter(|ready| ready.id.caller == caller).count()
        };
        let waiting = self.waiting.iter().map(|queued| queued.id).enumerate();
        let free = waiting.filter(|(_, id)| !passed.contains(id) && !reads(id.caller));
        free.min_by_key(|(_, id)| under_way(id.caller)).map(|(at, _)| at)
    }

    /// Makes room for a prompt and its first continuation. Where it cannot go on from where it would best, it goes on with less;
    /// and in a trunk with no more room than it needs; `None` where it must wait.
    fn make_room(&mut self, queued: &Queued, found: CacheMatch) -> Option<(CacheMatch, usize)> {
        let (tokens, room) = (queued.tokens(), queued.room());
        let stays = pinned(&self.live, &self.ready);
        let free = self.limits.tokens.saturating_sub(self.set_aside() + room + 2 * OWN);
        let idle = |id| self.shelf.get(id).is_some_and(|trunk| !trunk.busy);
        let inside = CacheMatch { within: found.trunk.is_some_and(idle), ..found };
        let anew = CacheMatch { trunk: None, kept: 0, within: false, ..found };
        let mut ways = vec![found, inside, anew];
        ways.dedup();
        let roomy = self.shelf.room(tokens);
        ways.into_iter().find_map(|found| {
            let copied = self.rebased(&found);
            let cost = |room: usize| self.shelf.cost(&found, tokens, room) + copied;
            // No prompt makes room for what is not needed.
            let room = if self.shelf.taken() + cost(roomy) <= free { roomy } else { tokens };
            let most = free.checked_sub(cost(room))?;
            let more = usize::from(!found.within);
            let made = self.shelf.make_room(most, more, |id| stays.contains(&id) || found.trunk == Some(id));
            made.then_some((found, room))
        })
    }

    /// Tokens that continuations must copy from a trunk before it is gone on in.
    fn rebased(&self, found: &CacheMatch) -> usize {
        let Some(id) = found.trunk.filter(|_| found.within) else { return 0 };
        let live = self.live.iter().filter(|live| live.trunk == id).map(|live| live.branch.start());
        let ready = self.ready.iter().filter(|ready| ready.trunk == id).map(|ready| ready.branch.start());
        let kept = found.kept - found.kept % SPLIT_K;
        live.chain(ready).map(|start| start.saturating_sub(kept)).sum()
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

    /// Lets continuations take with them what they read of a trunk and the one that goes on in it will not keep.
    fn leave_trunk(&mut self, found: &CacheMatch) -> Result<(), RequestError> {
        let Some(id) = found.trunk.filter(|_| found.within) else { return Ok(()) };
        let Some(trunk) = self.shelf.get(id) else { return Ok(()) };
        for live in self.live.iter_mut().filter(|live| live.trunk == id) {
            live.branch.rebase(&trunk.cache, found.kept)?;
        }
        for ready in self.ready.iter_mut().filter(|ready| ready.trunk == id) {
            ready.branch.rebase(&trunk.cache, found.kept)?;
        }
        Ok(())
    }

    fn put_back(&mut self, id: u64) {
        let stays = pinned(&self.live, &self.ready);
        self.shelf.give_back(id, |id| stays.contains(&id));
    }

    /// Reads a chunk of a prompt: of the first, or of the one that has least to go.
    fn read(&mut self) {
        let left = |reading: &Reading| {
            let held = self.shelf.get(reading.trunk).map_or(0, |trunk| trunk.tokens.len());
            reading.tokens().len().saturating_sub(held)
        };
        let first = |reading: &Reading| reading.begun;
        let going = || (0..self.reading.len()).filter(|&at| !self.reading[at].waits);
        let at = match self.rounds.is_multiple_of(2) {
            true => going().min_by_key(|&at| left(&self.reading[at])),
            false => going().min_by_key(|&at| first(&self.reading[at])),
        };
        let Some(at) = at else { return };
        let beside = self.live.iter().any(|live| !self.is_held(live));
        let chunk = match (beside, self.pace) {
            (false, _) => self.engine.chunk(),
            (true, None) => self.engine.chunk().min(FIRST_CHUNK),
            (true, Some(pace)) => {
                ((pace * SECONDS_BESIDE_OTHERS) as usize).max(LEAST_CHUNK).min(self.engine.chunk())
            }
        };
        if self.would_overwrite(&self.reading[at]) {
            self.reading[at].waits = true;
            return;
        }
        let begun = Instant::now();
        let reading = &mut self.reading[at];
        let id = reading.trunk;
        let Some(trunk) = self.shelf.get_mut(id) else { return };
        let engine = &self.engine;
        // The panic itself has been printed.
        let step = panic::catch_unwind(AssertUnwindSafe(|| reading.step(engine, trunk, chunk)));
        let step = step.map_or(Err(RequestError::Panicked), |step| step.map_err(RequestError::from));
        match step {
            Ok(Step::Nothing) => {}
            Ok(Step::Read(read)) => {
                self.count(read, begun);
                self.reading[at].tell(read);
            }
            Ok(Step::Whole(read, whole)) => {
                self.count(read, begun);
                self.whole(at, *whole, read);
            }
            Ok(Step::Force(group)) => self.force(at, group),
            Err(error) => return self.lose(at, &error),
        }
        if self.reading.get(at).is_some_and(|reading| reading.trunk == id && reading.is_done()) {
            self.reading.remove(at);
            self.put_back(id);
        }
    }

    /// True if the next branch of a request would overwrite keys of the trunk that its answers under way still read.
    fn would_overwrite(&self, reading: &Reading) -> bool {
        let Some(kept) = reading.next_kept() else { return false };
        let live = self.live.iter().filter(|live| live.id == reading.id).map(|live| live.branch.start());
        let ready = self.ready.iter().filter(|ready| ready.id == reading.id).map(|r| r.branch.start());
        live.chain(ready).any(|start| start > kept)
    }

    /// Counts tokens that were read.
    fn count(&mut self, read: usize, begun: Instant) {
        self.gauges.update(|load| load.read += read as u64);
        if read >= LEAST_CHUNK {
            self.pace = Some(read as f64 / begun.elapsed().as_secs_f64().max(1e-6));
        }
    }

    /// Ends a request whose trunk nobody can go on from.
    fn lose(&mut self, at: usize, error: &RequestError) {
        let reading = self.reading.remove(at);
        self.shelf.bury(reading.trunk);
        self.report();
        reading.end(error);
    }

    /// Takes a prompt that was read: what is asked of the prompt alone is told, and its answers get a branch of the trunk.
    fn whole(&mut self, at: usize, mut whole: WholePrompt, read: usize) {
        let kept = whole.branch.kept;
        let (request, id) = (self.reading[at].id, self.reading[at].trunk);
        whole.branch.tell(|| Event::Prefilled(read));
        let dirty = !whole.branch.knockouts.is_empty();
        let (prompt, choices) = match OfPrompt::new(whole) {
            Ok(made) => made,
            Err((choices, error)) => return end_all(choices, &error),
        };
        let Some(trunk) = self.shelf.get_mut(id) else { return end_all(choices, &RequestError::Gone) };
        // 1. What generates nothing.
        let (mut answers, mut others) = (Vec::new(), Vec::new());
        for mut choice in choices {
            let scores = match &choice.task {
                Task::Generate(_) => {
                    answers.push(choice);
                    continue;
                }
                Task::Score(texts) => {
                    let read: usize = texts.iter().map(|text| text.len().saturating_sub(1)).sum();
                    self.gauges.update(|load| load.read += read as u64);
                    prompt.score(&self.engine, &mut trunk.cache, texts)
                }
                Task::Read | Task::Force(_) => Ok(Vec::new()),
            };
            match scores.map_err(RequestError::from).and_then(|scores| {
                choice.hear_of_prompt(Event::Prompt)?;
                prompt.measured(&self.engine, scores)
            }) {
                Ok(measured) => others.push((choice, Ok(measured))),
                Err(error) => others.push((choice, Err(error))),
            }
        }
        // 2. Answers: in a copy of what the branch has of its own, where others are still to be read into the trunk.
        let room = answers.iter().map(|choice| choice.task.room()).max().unwrap_or(0);
        let last = self.reading[at].pending.is_empty();
        let copied = branch_rows(kept, trunk.cache.len() - kept + room);
        let aside = self.set_aside();
        let most = self.limits.tokens.saturating_sub(aside + copied);
        let mut stays = pinned(&self.live, &self.ready);
        stays.push(id);
        // A prompt that nobody reads goes before answers are generated one after the other.
        let alone = !last && !self.shelf.make_room(most, 0, |id| stays.contains(&id));
        let Some(trunk) = self.shelf.get_mut(id) else { return end_all(answers, &RequestError::Gone) };
        let branch = match last || alone {
            true => trunk.cache.continuation(room),
            false => trunk.cache.branch_after(kept, room),
        };
        if dirty {
            // Nobody else may go on behind keys of rows that something was hidden from.
            trunk.tokens.truncate(kept);
        }
        for mut choice in std::mem::take(&mut answers) {
            match choice.hear_of_prompt(Event::Prompt) {
                Ok(()) => answers.push(choice),
                Err(error) => others.push((choice, Err(error))),
            }
        }
        match branch {
            Err(error) => end_all(answers, &error.into()),
            Ok(_) if answers.is_empty() => {}
            Ok(branch) => {
                let generated = answers.len();
                self.ready.push_back(Ready::new(request, id, branch, prompt, answers));
                // 3. The next branch, where its answers have a place beside these.
                let reading = &mut self.reading[at];
                let next = reading.pending.front().map_or(0, Pending::generates);
                let beside = self.live.iter().filter(|live| live.id == request).count()
                    + self
                        .ready
                        .iter()
                        .filter(|ready| ready.id == request)
                        .map(|r| r.choices.len())
                        .sum::<usize>();
                reading.waits = !last && (alone || generated > 1 || beside + next > self.limits.parallel);
            }
        }
        self.report();
        others.into_iter().for_each(|(choice, outcome): (Choice, _)| choice.end(outcome));
    }

    /// Reads branches that force the same tokens, all at once, and hands out the logits.
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
        let choices: Vec<&mut Choice> =
            group.iter_mut().filter_map(|branch| branch.choices.first_mut()).collect();
        let engine = &self.engine;
        let read = panic::catch_unwind(AssertUnwindSafe(|| {
            let mut choices = choices;
            engine.read_variants(
                &mut trunk.cache,
                (&tokens, forced.len()),
                &holes,
                &mut |nth, from, logits| {
                    if let (Some(choice), Some(failed @ None)) = (choices.get_mut(nth), failed.get_mut(nth)) {
                        *failed = choice.hear_of_prompt(Event::Logits(from, logits)).err();
                    }
                },
            )
        }));
        let read = read.map_or(Err(RequestError::Panicked), |read| read.map_err(RequestError::from));
        match read {
            Err(error @ RequestError::Engine(EngineError::NotFinite { .. })) => {
                // The cache is as it was.
                group.into_iter().for_each(|branch| branch.end(&error));
            }
            Err(error) => {
                group.into_iter().for_each(|branch| branch.end(&error));
                self.lose(at, &error);
            }
            Ok(()) => {
                for (branch, failed) in group.into_iter().zip(failed) {
                    let prompt = OfPrompt::forced(&branch, held);
                    for choice in branch.choices {
                        let measured = prompt.measured(&self.engine, Vec::new());
                        choice.end(failed.as_ref().map_or(measured, |error| Err(error.again())));
                    }
                }
            }
        }
    }

    /// Lets every answer that is not held choose a token, and reads those of all that go on in one forward pass. Returns whether any
    /// goes on.
    fn generate(&mut self) -> bool {
        // 1. A token each, or the end.
        let mut ended = Vec::new();
        let (mut held, mut going) = (Vec::new(), Vec::new());
        for mut live in std::mem::take(&mut self.live) {
            if self.is_held(&live) {
                held.push(live);
                continue;
            }
            match live.choose() {
                Ok(true) => going.push(live),
                Ok(false) => ended.push((live, Ok(()))),
                Err(error) => ended.push((live, Err(error))),
            }
        }
        // Those that go on are among the live ones while others are told their end, and so in the gauges.
        let stay = held.len();
        self.live = held;
        self.live.append(&mut going);
        self.end(ended);
        let mut going = self.live.split_off(stay);
        // Branches of one trunk that begin at the same place lie beside each other.
        going.sort_by_key(|live| (live.trunk, live.branch.start()));
        if going.is_empty() {
            return false;
        }

        // 2. What those that go on make of theirs.
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
        let engine = &self.engine;
        self.gauges.update(|load| {
            load.steps += 1;
            load.stepped += tokens.len() as u64;
        });
        let read = panic::catch_unwind(AssertUnwindSafe(|| engine.step(&tokens, groups)));
        drop(parts);
        let error = match read {
            Ok(Ok(read)) => {
                let mut ended = Vec::new();
                for (mut live, logits) in going.into_iter().zip(read) {
                    match logits {
                        Ok(logits) => {
                            live.decoding.take(logits);
                            self.live.push(live);
                        }
                        Err(error) => ended.push((live, Err(error.into()))),
                    }
                }
                self.end(ended);
                return true;
            }
            Ok(Err(error)) => RequestError::from(error),
            Err(_) => RequestError::Panicked,
        };
        // None of them can go on: some layers have taken their tokens, others not.
        self.end(going.into_iter().map(|live| (live, Err(error.again()))).collect());
        false
    }

    /// Tells continuations their end, when the gauges know of it.
    fn end(&mut self, ended: Vec<(Live, Result<(), RequestError>)>) {
        if !ended.is_empty() {
            self.report();
        }
        ended.into_iter().for_each(|(live, outcome)| live.end(&self.engine, outcome));
    }
}

/// The trunks that are read.
fn pinned(live: &[Live], ready: &VecDeque<Ready>) -> Vec<u64> {
    live.iter().map(|live| live.trunk).chain(ready.iter().map(|ready| ready.trunk)).collect()
}

/// Ends tasks of a prompt that could not be read.
fn end_all(choices: Vec<Choice>, error: &RequestError) {
    for choice in choices {
        choice.end(Err(error.again()));
    }
}
