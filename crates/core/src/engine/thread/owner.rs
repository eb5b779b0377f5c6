//! What the thread does: reads prompts chunk by chunk and generates all continuations together, round after round.
//!
//! A round begins what there is room for, reads a chunk of one prompt, and lets those that are being generated take a step or a few:
//! a long prompt does not keep them waiting, and they do not keep it. Several prompts are read in turn, now the one that came first
//! and now the one that has least to go, so that a short one does not wait for a long one either; but one that shares more with a
//! prompt under way than with what is kept waits for that one, and what both share is read once. What is kept of prompts is the
//! [`Shelf`]'s; answers are no part of it, since generated tokens are summed in another order than read ones.
//!
//! Prompts and continuations share a budget of tokens. A continuation sets aside all that it may generate before its prompt is read,
//! so that what has begun can always end; what does not fit waits. Whoever waits, whatever is kept and whoever else is served:
//! on the CPU in f32 an answer has the same bits.

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use super::Limits;
use super::load::{Gauges, add, set};
use super::reading::{Reading, first_to_read};
use super::request::{Choice, Event, Job, RequestError};
use super::shelf::{Place, Shelf, common, loses_little};
use super::speaking::{Live, Ready};
use crate::attention::{Observer, SPLIT_K};
use crate::engine::Engine;
use crate::model::{Cache, Group};

/// Prompts that are read in turn, at most.
const MOST_READ: usize = 4;

/// Seconds that a chunk may take while others are being generated, whose next tokens come after it.
const SECONDS_BESIDE_OTHERS: f64 = 0.25;

/// Tokens of such a chunk at least, below which products are slow; and before it is known how fast prompts are read.
const LEAST_CHUNK: usize = 32;
const FIRST_CHUNK: usize = 128;

/// What is generated gets one part of the time for so many parts of reading, and a step a chunk at least.
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
    jobs: Receiver<Job>,
    waiting: VecDeque<Job>,
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
        jobs: Receiver<Job>,
        gauges: Arc<Gauges>,
    ) -> Self {
        let limits = limits.fitting(cache.capacity());
        let shelf = Shelf::new(cache, limits.prompts);
        set(&gauges.room, limits.tokens);
        EngineLoop {
            engine,
            shelf,
            limits,
            jobs,
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
        while self.listen() {
            // What can go wrong in one request is caught where it happens. This is for what cannot: those under way hear that they
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
    }

    /// Takes what was asked; waits for it where nothing else is to be done. Returns whether anybody is there.
    fn listen(&mut self) -> bool {
        if self.idle() {
            let Ok(job) = self.jobs.recv() else { return false };
            self.queue(job);
        }
        loop {
            match self.jobs.try_recv() {
                Ok(job) => self.queue(job),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return !self.idle(),
            }
        }
    }

    fn idle(&self) -> bool {
        self.waiting.is_empty() && self.reading.is_empty() && self.ready.is_empty() && self.live.is_empty()
    }

    fn queue(&mut self, job: Job) {
        let choices = job.choices.len();
        self.waiting.push_back(job);
        self.report();
        self.gauges.queued.fetch_sub(choices, Ordering::Relaxed);
    }

    /// Tells the gauges how things stand.
    fn report(&mut self) {
        let waiting = self.waiting.iter().map(|job| job.choices.len()).sum::<usize>()
            + self.ready.iter().map(|ready| ready.choices.len()).sum::<usize>();
        set(&self.gauges.waiting, waiting);
        set(&self.gauges.running, self.live.len() + self.reading.len());
        set(&self.gauges.cached, self.shelf.held());
        set(&self.gauges.taken, self.shelf.taken() + self.set_aside());
        set(&self.gauges.prompts, self.shelf.len());
        add(&self.gauges.evicted, self.shelf.take_evicted());
    }

    fn round(&mut self) {
        self.rounds += 1;
        self.begin_ready();
        self.begin_waiting();
        self.report();
        let reading = Instant::now();
        self.read();
        let (read, generating) = (reading.elapsed(), Instant::now());
        loop {
            self.generate();
            let enough = self.reading.is_empty() || generating.elapsed() * READING_PARTS >= read;
            if self.live.is_empty() || enough || read == Duration::ZERO {
                break;
            }
        }
        let stays = pinned(&self.live, &self.ready);
        self.shelf.sweep(|id| stays.contains(&id));
    }

    /// Tokens of memory that continuations have set aside.
    fn set_aside(&self) -> usize {
        let live = self.live.iter().map(|live| live.branch.rows());
        let ready = self.ready.iter().map(|ready| ready.branch.rows());
        let reading = self.reading.iter().map(|reading| reading.room() + 2 * OWN);
        live.chain(ready).chain(reading).sum()
    }

    /// Begins continuations of prompts that were read, where there is a place for them.
    fn begin_ready(&mut self) {
        while self.live.len() + self.reading.len() < self.limits.parallel {
            let Some(ready) = self.ready.front_mut() else { return };
            let Some(choice) = ready.choices.pop_front() else {
                self.ready.pop_front();
                continue;
            };
            let (needed, set_aside) = (choice.request.room() + OWN, self.set_aside());
            let stays = pinned(&self.live, &self.ready);
            let most = self.limits.tokens.saturating_sub(set_aside + needed);
            let fits = self.shelf.make_room(most, 0, |id| stays.contains(&id));
            let Some(ready) = self.ready.front_mut() else { return };
            let alone = self.live.is_empty() && self.reading.is_empty();
            if !fits && !alone {
                ready.choices.push_front(choice);
                return;
            }
            self.live.extend(ready.begin(choice));
        }
    }

    /// Begins to read prompts that wait, in the order in which they came, where there is a place for them.
    fn begin_waiting(&mut self) {
        let mut at = 0;
        while at < self.waiting.len()
            && self.reading.len() < MOST_READ
            && self.live.len() + self.reading.len() < self.limits.parallel
            && self.ready.is_empty()
        {
            let Some(mut job) = self.waiting.remove(at) else { return };
            // Those who do not wait any more cost nothing.
            for mut choice in std::mem::take(&mut job.choices) {
                let heard = choice
                    .hear_of_prompt(Event::Prefilled(0))
                    .and_then(|()| choice.check(self.shelf.context()));
                match heard {
                    Ok(()) => job.choices.push(choice),
                    Err(error) => choice.end(Err(error)),
                }
            }
            let Some(choice) = job.choices.first() else { continue };
            let first = first_to_read(&choice.request, &self.engine);
            let prompt = &choice.request.tokens;
            let place = self.shelf.place(prompt, first, |at| self.engine.border(at));
            // One that shares more than what is kept, and one whose trunk can be gone on in when it is done with it.
            let shares = |reading: &Reading| {
                common(reading.tokens(), prompt).min(first) > place.kept + WORTH_WAITING
                    || (place.trunk == Some(reading.trunk)
                        && loses_little(reading.tokens().len(), place.kept))
            };
            if self.reading.iter().any(shares) {
                self.waiting.insert(at, job);
                at += 1;
                continue;
            }
            match self.make_room(&job, place) {
                Some((place, room)) => self.begin_reading(job, &place, room),
                None => {
                    self.waiting.insert(at, job);
                    return;
                }
            }
        }
    }

    /// Makes room for a prompt and its first continuation. Where it cannot go on from where it would best, it goes on with less;
    /// and in a trunk with no more room than it needs; `None` where it must wait.
    fn make_room(&mut self, job: &Job, place: Place) -> Option<(Place, usize)> {
        let tokens = job.choices.first()?.request.tokens.len();
        let room = job.choices.iter().map(|choice| choice.request.room()).max()?;
        let stays = pinned(&self.live, &self.ready);
        let free = self.limits.tokens.saturating_sub(self.set_aside() + room + 2 * OWN);
        let idle = |id| self.shelf.get(id).is_some_and(|trunk| !trunk.busy);
        let inside = Place { within: place.trunk.is_some_and(idle), ..place };
        let anew = Place { trunk: None, kept: 0, within: false, ..place };
        let mut places = vec![place, inside, anew];
        places.dedup();
        let roomy = self.shelf.room(tokens);
        places.into_iter().find_map(|place| {
            let copied = self.rebased(&place);
            let cost = |room: usize| self.shelf.cost(&place, tokens, room) + copied;
            // No prompt makes room for what is not needed.
            let room = if self.shelf.taken() + cost(roomy) <= free { roomy } else { tokens };
            let most = free.checked_sub(cost(room))?;
            let more = usize::from(!place.within);
            let made = self.shelf.make_room(most, more, |id| stays.contains(&id) || place.trunk == Some(id));
            made.then_some((place, room))
        })
    }

    /// Tokens that continuations must copy from a trunk before it is gone on in.
    fn rebased(&self, place: &Place) -> usize {
        let Some(id) = place.trunk.filter(|_| place.within) else { return 0 };
        let live = self.live.iter().filter(|live| live.trunk == id).map(|live| live.branch.start());
        let ready = self.ready.iter().filter(|ready| ready.trunk == id).map(|ready| ready.branch.start());
        let kept = place.kept - place.kept % SPLIT_K;
        live.chain(ready).map(|start| start.saturating_sub(kept)).sum()
    }

    fn begin_reading(&mut self, job: Job, place: &Place, room: usize) {
        let tokens = job.choices.first().map_or(0, |choice| choice.request.tokens.len());
        let taken = self.leave_trunk(place).and_then(|()| Ok(self.shelf.take(place, tokens, room)?));
        let id = match taken {
            Ok(id) => id,
            Err(error) => return end_all(job.choices, &error),
        };
        let Some(trunk) = self.shelf.get(id) else { return };
        match Reading::new(job.choices, &self.engine, trunk, place.common) {
            Ok(mut reading) => {
                add(&self.gauges.found, reading.reused);
                match reading.tell(Event::Begun, reading.reused) {
                    Ok(()) => self.reading.push(reading),
                    Err(_) => self.put_back(id),
                }
            }
            Err((choices, error)) => {
                self.put_back(id);
                end_all(choices, &error);
            }
        }
    }

    /// Lets continuations take with them what they read of a trunk and the one that goes on in it will not keep.
    fn leave_trunk(&mut self, place: &Place) -> Result<(), RequestError> {
        let Some(id) = place.trunk.filter(|_| place.within) else { return Ok(()) };
        let Some(trunk) = self.shelf.get(id) else { return Ok(()) };
        for live in self.live.iter_mut().filter(|live| live.trunk == id) {
            live.branch.rebase(&trunk.cache, place.kept)?;
        }
        for ready in self.ready.iter_mut().filter(|ready| ready.trunk == id) {
            ready.branch.rebase(&trunk.cache, place.kept)?;
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
        let at = match self.rounds.is_multiple_of(2) {
            true => (0..self.reading.len()).min_by_key(|&at| left(&self.reading[at])),
            false => (0..self.reading.len()).min_by_key(|&at| first(&self.reading[at])),
        };
        let Some(at) = at else { return };
        let chunk = match (self.live.is_empty(), self.pace) {
            (true, _) => self.engine.chunk(),
            (false, None) => self.engine.chunk().min(FIRST_CHUNK),
            (false, Some(pace)) => {
                ((pace * SECONDS_BESIDE_OTHERS) as usize).max(LEAST_CHUNK).min(self.engine.chunk())
            }
        };
        let begun = Instant::now();
        let reading = &mut self.reading[at];
        let id = reading.trunk;
        let Some(trunk) = self.shelf.get_mut(id) else { return };
        let engine = &self.engine;
        // The panic itself has been printed.
        let step = panic::catch_unwind(AssertUnwindSafe(|| reading.step(engine, trunk, chunk)));
        let read = match step {
            Ok(Ok((read, logits))) => {
                add(&self.gauges.read, read);
                if read >= LEAST_CHUNK {
                    self.pace = Some(read as f64 / begun.elapsed().as_secs_f64().max(1e-6));
                }
                reading.tell(Event::Prefilled, read).map(|()| logits)
            }
            failed => {
                self.shelf.bury(id);
                let error =
                    failed.map_or(Some(RequestError::Panicked), |step| step.err().map(RequestError::from));
                let choices = self.reading.remove(at).choices;
                self.report();
                return end_all(choices, &error.unwrap_or(RequestError::Panicked));
            }
        };
        match read {
            Ok(None) => {}
            // Nobody is left. What was read is kept.
            Err(_) => {
                self.reading.remove(at);
                self.put_back(id);
            }
            Ok(Some(logits)) => {
                let reading = self.reading.remove(at);
                self.put_back(id);
                self.whole(reading, logits);
            }
        }
    }

    /// Takes a prompt that was read.
    fn whole(&mut self, reading: Reading, logits: candle_core::Tensor) {
        let (id, reused) = (reading.trunk, reading.reused);
        let (prompt, mut choices) = reading.finish(logits);
        let Some(trunk) = self.shelf.get(id) else { return };
        match Ready::new((id, &trunk.cache), prompt, reused, &choices) {
            Err(error) => end_all(choices, &error),
            Ok(mut ready) => match (choices.len(), choices.pop()) {
                (1, Some(only)) => self.live.push(ready.only(only)),
                (_, last) => {
                    ready.choices = choices.into_iter().chain(last).collect();
                    self.ready.push_back(ready);
                    self.begin_ready();
                }
            },
        }
    }

    /// Lets every continuation choose a token, and reads those of all that go on in one forward pass.
    fn generate(&mut self) {
        // 1. A token each, or the end.
        let mut ended = Vec::new();
        for mut live in std::mem::take(&mut self.live) {
            match live.choose() {
                Ok(true) => self.live.push(live),
                Ok(false) => ended.push((live, Ok(()))),
                Err(error) => ended.push((live, Err(error))),
            }
        }
        self.end(ended);
        // Branches of one trunk that begin at the same place lie beside each other.
        self.live.sort_by_key(|live| (live.trunk, live.branch.start()));
        if self.live.is_empty() {
            return;
        }

        // 2. What those that go on make of theirs.
        let (mut tokens, mut groups, mut watches) = (Vec::new(), Vec::<Group<'_>>::new(), Vec::new());
        let mut before = None;
        for live in &mut self.live {
            tokens.extend(live.decoding.unread());
            let group = (live.trunk, live.branch.start());
            let (branch, watch) = live.watched();
            watches.push(watch);
            match groups.last_mut() {
                Some((_, branches)) if before == Some(group) => branches.push(branch),
                _ => groups.extend(self.shelf.get(group.0).map(|trunk| (&trunk.cache, vec![branch]))),
            }
            before = Some(group);
        }
        let observers = watches.iter_mut().map(|watch| watch as &mut dyn Observer).collect();
        let engine = &self.engine;
        add(&self.gauges.steps, 1);
        add(&self.gauges.stepped, tokens.len());
        let read = panic::catch_unwind(AssertUnwindSafe(|| engine.step_groups(&tokens, groups, observers)));
        drop(watches);
        let error = match read {
            Ok(Ok(read)) => {
                let mut ended = Vec::new();
                for (mut live, logits) in std::mem::take(&mut self.live).into_iter().zip(read) {
                    match logits {
                        Ok(logits) => {
                            live.decoding.take(logits);
                            self.live.push(live);
                        }
                        Err(error) => ended.push((live, Err(error.into()))),
                    }
                }
                return self.end(ended);
            }
            Ok(Err(error)) => RequestError::from(error),
            Err(_) => RequestError::Panicked,
        };
        // None of them can go on: some layers have taken their tokens, others not.
        let ended = std::mem::take(&mut self.live);
        self.end(ended.into_iter().map(|live| (live, Err(error.again()))).collect());
    }

    /// Tells continuations their end, when the gauges know of it.
    fn end(&mut self, ended: Vec<(Live, Result<(), RequestError>)>) {
        if !ended.is_empty() {
            self.report();
        }
        ended.into_iter().for_each(|(live, outcome)| live.end(outcome));
    }
}

/// The trunks that are read.
fn pinned(live: &[Live], ready: &VecDeque<Ready>) -> Vec<u64> {
    live.iter().map(|live| live.trunk).chain(ready.iter().map(|ready| ready.trunk)).collect()
}

/// Ends continuations of a prompt that could not be read.
fn end_all(choices: Vec<Choice>, error: &RequestError) {
    for choice in choices {
        choice.end(Err(error.again()));
    }
}
