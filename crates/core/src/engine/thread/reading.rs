//! A request that is being read into a trunk, chunk by chunk, so that others are served in between: its prefix, then branch after
//! branch, each rolled back to the prefix when its cache is copied. Where forced branches hide keys from rows inside the prefix, it is read
//! again from the first such row on, once for all branches that hide the same there.
//!
//! On the CPU in f32 or bf16 a prefill has the same bits however it is cut ([`Engine::border`]): a prompt may begin wherever its
//! trunk leaves it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use candle_core::Tensor;

use super::caller::Caller;
use super::shelf::Trunk;
use crate::attention::{LayerHoles, NoObserver};
use crate::engine::measure::Observe;
use crate::engine::request::{Branch, Choice, Event, Request, Reuse, Sink, Task};
use crate::engine::request_error::RequestError;
use crate::engine::{Engine, EngineError, Likelihood, Measurement};
use crate::model::Pass;
use crate::span::Span;
use crate::transfer;

/// Positions whose logits are asked for at once where all of a prompt's are: they take more memory than a model.
const SCORED: usize = 256;

/// Where a prompt has no better place to be left, a mark is set at a multiple of this.
const MARKED: usize = 256;

/// Fewer tokens than this in common are no reason for a mark.
const WORTH_A_MARK: usize = 32;

/// The number of a request, and of the caller whose requests are begun in turn with those of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestId {
    pub request: u64,
    pub caller: Caller,
}

/// A request that waits.
pub(super) struct Queued {
    pub id: RequestId,
    reuse: Reuse,
    /// Tokens of the prefix that some branch sees as it is without knock-outs.
    prefix: usize,
    /// Those whose rows begin to differ last come first: each leaves the trunk as it is before them.
    pub branches: VecDeque<Pending>,
}

/// A branch that is still to be read.
pub(super) struct Pending {
    /// Prefix and tokens.
    pub prompt: Arc<[u32]>,
    /// Where its own part begins: behind the prefix, or before the first row that is not as in the others.
    pub kept: usize,
    prefix: usize,
    pub knockouts: LayerHoles,
    pub observe: Observe,
    /// At least one.
    pub choices: Vec<Choice>,
}

impl Queued {
    /// Of a request whose tasks have these sinks, in their order; those behind the last sink are dropped.
    pub fn new(id: RequestId, request: Request, sinks: Vec<Sink>) -> Self {
        let Request { prefix, reuse, branches } = request;
        let mut sinks = sinks.into_iter();
        let pending = branches.into_iter().map(|branch| {
            let Branch { tokens, knockouts, observe, tasks } = branch;
            let choices = tasks.into_iter().zip(sinks.by_ref());
            let choices: Vec<Choice> = choices.map(|(task, sink)| Choice { task, sink }).collect();
            let inside = match observe.norms || !observe.targets.is_empty() {
                true => observe.first_row(),
                false => None,
            };
            let first = [knockouts.first_row(), inside].into_iter().flatten().min();
            let kept = first.map_or(prefix.len(), |first| first.min(prefix.len()));
            let prompt: Arc<[u32]> = match prefix.is_empty() {
                true => tokens.into(),
                false => [&*prefix, &tokens].concat().into(),
            };
            Pending { prompt, kept, prefix: prefix.len(), knockouts, observe, choices }
        });
        let mut branches: Vec<Pending> = pending.filter(|branch| !branch.choices.is_empty()).collect();
        branches.sort_by_key(|branch| Reverse(branch.kept));
        let prefix = branches.first().map_or(0, |branch| branch.kept);
        Queued { id, reuse, prefix, branches: branches.into() }
    }

    /// Tasks.
    pub fn tasks(&self) -> usize {
        self.branches.iter().map(|branch| branch.choices.len()).sum()
    }

    /// The prompt that is read first.
    pub fn prompt(&self) -> &[u32] {
        self.branches.front().map_or(&[], |branch| &branch.prompt)
    }

    /// Most tokens that the trunk must hold.
    pub fn tokens(&self) -> usize {
        self.branches.iter().map(Pending::tokens).max().unwrap_or(0)
    }

    /// Most tokens that one task generates.
    pub fn room(&self) -> usize {
        self.branches.iter().map(Pending::room).max().unwrap_or(0)
    }

    /// True if the answers of this request are generated one after the other.
    pub fn is_single(&self) -> bool {
        self.branches.len() == 1
    }

    /// The first position that must be read: one whose logits or whose row is wanted, or the last one but one.
    pub fn first_to_read(&self, engine: &Engine) -> usize {
        let observed = || self.branches.iter().map(|branch| &branch.observe);
        // The keys of linear-attention layers are in no cache.
        let linear = engine.decoder().spec().layers.iter().any(|layer| layer.delta_net().is_some());
        let unkept = |observe: &Observe| observe.any() && linear && !observe.softmax_only;
        if observed().any(|observe| observe.likeliest.is_some() || unkept(observe)) {
            return 0;
        }
        let first = observed().filter_map(Observe::first_row).min();
        match (self.prefix, self.branches.front()) {
            (0, Some(only)) if self.is_single() => {
                let n = only.prompt.len();
                // A token by itself would be summed in the order of decoding.
                let last = n - only.observe.logits.max(2).min(n);
                // Rows that something is hidden from are not in the cache as they see it.
                [first, only.knockouts.first_row()].into_iter().flatten().fold(last, usize::min)
            }
            // The prefix is measured once for all branches.
            (prefix, _) if first.is_none_or(|first| first >= prefix) => prefix,
            _ => 0,
        }
    }

    /// The last position up to `at` at which the prompt may be gone on with: at the end of the prefix it is cut in any case.
    pub fn border(&self, at: usize, engine: &Engine) -> usize {
        if at == self.prefix { at } else { engine.border(at) }
    }

    /// The number of used tokens among those that a trunk could keep.
    pub fn reused(&self, kept: usize) -> usize {
        match self.reuse {
            Reuse::Prefix if kept < self.prefix || self.prefix == 0 => 0,
            Reuse::Prefix => self.prefix,
            // A token by itself would be summed in the order of decoding.
            Reuse::Longest if kept + 1 == self.prefix => kept.saturating_sub(1),
            Reuse::Longest => kept,
        }
    }

    /// The first request that cannot be served whatever the cache holds is told so.
    pub fn check(&mut self, context: usize) {
        for branch in &mut self.branches {
            let needed = branch.tokens().saturating_add(branch.room());
            for mut choice in std::mem::take(&mut branch.choices) {
                let heard =
                    choice.hear_of_prompt(Event::Prefilled(0)).and_then(|()| match branch.prompt.len() {
                        0 => Err(EngineError::EmptyPrompt.into()),
                        _ if needed > context => Err(RequestError::TooLong { needed, context }),
                        _ => Ok(()),
                    });
                match heard {
                    Ok(()) => branch.choices.push(choice),
                    Err(error) => choice.end(Err(error)),
                }
            }
        }
        self.branches.retain(|branch| !branch.choices.is_empty());
        self.prefix = self.branches.front().map_or(0, |branch| branch.kept);
    }

    /// Ends all of it.
    pub fn end(self, error: &RequestError) {
        self.branches.into_iter().for_each(|branch| branch.end(error));
    }
}

impl Pending {
    /// Most tokens that one task generates.
    pub fn room(&self) -> usize {
        self.choices.iter().map(|choice| choice.task.room()).max().unwrap_or(0)
    }

    fn tokens(&self) -> usize {
        self.prompt.len() + self.choices.iter().map(|choice| choice.task.read_behind()).max().unwrap_or(0)
    }

    /// Answers that are generated.
    pub fn generates(&self) -> usize {
        self.choices.iter().filter(|choice| matches!(choice.task, Task::Generate(_))).count()
    }

    /// The tokens of a branch that is only forced.
    pub fn forced(&self) -> Option<&Arc<[u32]>> {
        match self.choices.as_slice() {
            [Choice { task: Task::Force(tokens), .. }] => Some(tokens),
            _ => None,
        }
    }

    /// The keys hidden from rows of the prefix; nothing where the prefix is as it is without knock-outs.
    fn hidden_inside(&self) -> Option<LayerHoles> {
        (self.kept < self.prefix).then(|| self.knockouts.before_row(self.prefix))
    }

    /// Tells all of it the same end.
    pub fn end(self, error: &RequestError) {
        self.choices.into_iter().for_each(|choice| choice.end(Err(error.again())));
    }

    /// Tells everybody how far the prompt is. Those who want no more leave.
    pub fn tell(&mut self, event: impl Fn() -> Event) {
        for mut choice in std::mem::take(&mut self.choices) {
            match choice.hear_of_prompt(event()) {
                Ok(()) => self.choices.push(choice),
                Err(error) => choice.end(Err(error)),
            }
        }
    }
}

/// A request under way.
pub(super) struct Reading {
    pub id: RequestId,
    /// The trunk that it is read into.
    pub trunk: u64,
    /// Since when it is read.
    pub begun: Instant,
    /// True while it waits for its answers under way to end.
    pub waits: bool,
    prefix: usize,
    /// True if there is one branch.
    single: bool,
    /// The measurement of the prefix that several branches share.
    shared: Option<Measurement>,
    current: Option<Current>,
    /// The keys hidden from rows of the prefix as the trunk's cache has it.
    hidden_inside: Option<LayerHoles>,
    pub pending: VecDeque<Pending>,
    /// Where later prompts may begin, of models that cannot go back anywhere: ascending.
    marks: Vec<usize>,
}

/// The branch that is being read.
struct Current {
    branch: Pending,
    reused: usize,
    /// `None` while the prefix is being read.
    measurement: Option<Measurement>,
    likelihoods: Vec<Likelihood>,
}

/// A branch whose prompt was read.
pub(super) struct WholePrompt {
    /// f32 (logits asked for, vocab)
    pub logits: Tensor,
    pub branch: Pending,
    pub measurement: Measurement,
    /// Of its tokens from the second on, where they were asked for.
    pub likelihoods: Vec<Likelihood>,
    pub reused: usize,
}

/// The result of a step.
pub(super) enum Step {
    /// So many tokens.
    Read(usize),
    /// So many, to the end of the branch's prompt.
    Whole(usize, Box<WholePrompt>),
    /// Branches that are read together, all after the prefix, and the tokens that are forced.
    Force(Vec<Pending>),
    /// A branch has ended without an output, or nobody waits for it any more.
    Nothing,
}

impl Reading {
    /// Of a request that has `common` tokens in common with some other one.
    pub fn new(queued: Queued, engine: &Engine, trunk: &Trunk, common: usize) -> Self {
        let Queued { id, reuse, prefix, branches } = queued;
        let marks = match (trunk.cache.sees_all(), branches.front()) {
            // Nobody goes on from it.
            _ if prefix == 0 && reuse == Reuse::Prefix => Vec::new(),
            (false, Some(first)) if prefix == 0 => {
                let n = first.prompt.len();
                let last = engine.border(n - first.observe.logits.max(2).min(n));
                let parting = match common.min(last) {
                    common if common >= WORTH_A_MARK => engine.border(common),
                    _ => last - last % MARKED,
                };
                vec![parting, last]
            }
            _ => vec![prefix],
        };
        // Two tokens at least lie between any two of them: none is read by itself.
        let reused = trunk.cache.len();
        let marks =
            marks.into_iter().filter(|mark| *mark > reused + 1 || (prefix > 0 && *mark > reused)).collect();
        let single = branches.len() == 1;
        let shared = (prefix > 0 && !single).then(|| shared(&branches, prefix));
        Reading {
            id,
            trunk: trunk.id,
            begun: Instant::now(),
            waits: false,
            prefix,
            single,
            shared,
            current: None,
            hidden_inside: None,
            pending: branches,
            marks,
        }
    }

    /// The prompt under way.
    pub fn tokens(&self) -> &[u32] {
        let current = self.current.as_ref().map(|current| &current.branch);
        current.or(self.pending.front()).map_or(&[], |branch| &branch.prompt)
    }

    /// Tokens that are set aside for what is generated first.
    pub fn room(&self) -> usize {
        let current = self.current.as_ref().map(|current| &current.branch);
        current.or(self.pending.front()).map_or(0, Pending::room)
    }

    /// Where the next branch begins, if the one before it was read.
    pub fn next_kept(&self) -> Option<usize> {
        self.pending.front().filter(|_| self.current.is_none()).map(|branch| branch.kept)
    }

    /// True if all of it was read.
    pub fn is_done(&self) -> bool {
        self.current.is_none() && self.pending.is_empty()
    }

    /// Ends what is left of it.
    pub fn end(self, error: &RequestError) {
        self.current.into_iter().for_each(|current| current.branch.end(error));
        self.pending.into_iter().for_each(|branch| branch.end(error));
    }

    /// Reads a chunk of at most `chunk` tokens into the trunk, or begins the next branch.
    ///
    /// # Errors
    /// The forward pass failed: nobody can go on from the trunk.
    pub fn step(&mut self, engine: &Engine, trunk: &mut Trunk, chunk: usize) -> Result<Step, EngineError> {
        let mut begun = None;
        if self.current.is_none() {
            let Some(branch) = self.pending.pop_front() else { return Ok(Step::Nothing) };
            if branch.forced().is_some() && (self.hidden_inside.is_some() || trunk.cache.len() >= self.prefix)
            {
                return match self.read_inside(engine, trunk, &branch, chunk)? {
                    0 => self.force(engine, trunk, branch).map(Step::Force),
                    read => Ok(self.wait(branch, read)),
                };
            }
            let at = if self.single { trunk.cache.len() } else { trunk.cache.len().min(branch.kept) };
            begun = Some(at);
            self.current = Some(Current { branch, reused: at, measurement: None, likelihoods: Vec::new() });
        }
        let Some(current) = &mut self.current else { return Ok(Step::Nothing) };
        if let Some(at) = begun {
            current.branch.tell(|| Event::Begun(at));
        }
        if current.branch.choices.is_empty() {
            self.current = None;
            return Ok(Step::Nothing);
        }

        // 1. What all branches begin with.
        let at = trunk.cache.len();
        if at < self.prefix
            && current.measurement.is_none()
            && (self.shared.is_some() || current.branch.forced().is_some())
        {
            let end = self.marked(at, self.prefix, chunk, engine);
            let Some(current) = &mut self.current else { return Ok(Step::Nothing) };
            let part = current.branch.prompt.get(at..end).unwrap_or_default();
            let mut nothing = Measurement::nothing(self.prefix);
            let measurement = self.shared.as_mut().unwrap_or(&mut nothing);
            engine.fill_cache(&mut trunk.cache, part, measurement, &mut |_| true)?;
            trunk.tokens.extend_from_slice(part);
            self.mark(trunk, end)?;
            let forced = |current: &mut Current| current.branch.forced().is_some();
            if end == self.prefix
                && let Some(current) = self.current.take_if(forced)
            {
                // It is read with others like it.
                self.pending.push_front(current.branch);
            }
            return Ok(Step::Read(end - at));
        }

        // 2. The branch's own part.
        if current.measurement.is_none() {
            match self.begin(engine, trunk) {
                Ok(()) => {}
                Err(Begin::Branch(error)) => {
                    if let Some(current) = self.current.take() {
                        current.branch.end(&error);
                    }
                    return Ok(Step::Nothing);
                }
                Err(Begin::Trunk(error)) => return Err(error),
            }
        }
        let n = self.tokens().len();
        let at = trunk.cache.len();
        let Some(Current { branch, .. }) = &self.current else { return Ok(Step::Nothing) };
        let (keep, likeliest) = (branch.observe.logits.clamp(1, n), branch.observe.likeliest);
        let chunk = if likeliest.is_some() { chunk.min(SCORED) } else { chunk };
        // Of several branches only the prefix is marked, once.
        let end = match if self.single {
            self.marked(at, n, chunk, engine)
        } else {
            engine.next_border(at, n, chunk)
        } {
            // Positions whose logits are wanted are read in one chunk.
            end if end > n - keep && likeliest.is_none() => n,
            end => end,
        };
        let Some(current) = &mut self.current else { return Ok(Step::Nothing) };
        let Current { branch, measurement: Some(measurement), likelihoods, .. } = current else {
            return Ok(Step::Nothing);
        };
        let part = branch.prompt.get(at..end).unwrap_or_default();
        let mut go_on = |_: usize| true;
        let cache = &mut trunk.cache;
        let pass = Pass::from(&mut *measurement).hiding(&branch.knockouts);
        let mut logits = None;
        match likeliest {
            Some(most) => {
                let of_part = engine.prefill(cache, part, part.len(), pass, &mut go_on)?;
                let (rows, vocab) = of_part.dims2()?;
                for row in transfer::fetch(&of_part)?.chunks_exact(vocab.max(1)) {
                    let Some(&next) = branch.prompt.get(likelihoods.len() + 1) else { break };
                    likelihoods.push(Likelihood::of(next, row, most));
                }
                if end == n {
                    logits = Some(of_part.narrow(0, rows - 1, 1)?);
                }
            }
            None if end == n => logits = Some(engine.prefill(cache, part, keep, pass, &mut go_on)?),
            None => engine.fill_cache(cache, part, pass, &mut go_on)?,
        }
        trunk.tokens.extend_from_slice(part);
        if self.single {
            self.mark(trunk, end)?;
        }
        match (logits, self.current.take()) {
            (Some(logits), Some(Current { branch, measurement: Some(measurement), likelihoods, reused })) => {
                let whole = WholePrompt { logits, branch, measurement, likelihoods, reused };
                Ok(Step::Whole(end - at, Box::new(whole)))
            }
            (_, current) => {
                self.current = current;
                Ok(Step::Read(end - at))
            }
        }
    }

    /// Tells those who wait for the branch under way how far it is.
    pub fn tell(&mut self, tokens: usize) {
        if let Some(current) = &mut self.current {
            current.branch.tell(|| Event::Prefilled(tokens));
            if current.branch.choices.is_empty() {
                self.current = None;
            }
        }
    }

    /// The end of the next chunk: at a mark, or where `to` is.
    fn marked(&self, at: usize, to: usize, chunk: usize, engine: &Engine) -> usize {
        let mark = self.marks.iter().copied().find(|mark| *mark > at);
        engine.next_border(at, mark.map_or(to, |mark| mark.min(to)), chunk)
    }

    fn mark(&self, trunk: &mut Trunk, end: usize) -> Result<(), EngineError> {
        if self.marks.contains(&end) {
            trunk.cache.mark()?;
        }
        Ok(())
    }

    /// Goes back to where the branch under way begins, and begins to measure it.
    fn begin(&mut self, engine: &Engine, trunk: &mut Trunk) -> Result<(), Begin> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let Pending { prompt, kept, observe, .. } = &current.branch;
        let most = current.branch.room();
        let own = Measurement::new(observe, prompt.len(), most, engine).map_err(Begin::Branch)?;
        let held = if self.single { trunk.cache.len() } else { trunk.cache.truncate(*kept)? };
        let measurement = match &self.shared {
            None => own,
            Some(shared) => {
                match own.clone().after(shared, held) {
                    Some(measurement) => measurement,
                    // A row that lies across the border is read anew, and all before it.
                    None => {
                        trunk.cache.truncate(0)?;
                        own
                    }
                }
            }
        };
        let held = trunk.cache.len().min(trunk.tokens.len());
        trunk.tokens.truncate(held);
        current.reused = current.reused.min(held);
        current.measurement = Some(measurement);
        Ok(())
    }

    /// Reads a chunk of the prefix of a branch from whose rows there keys are hidden. Returns the number of its tokens: 0 where the
    /// trunk holds the prefix as the branch sees it.
    fn read_inside(
        &mut self,
        engine: &Engine,
        trunk: &mut Trunk,
        branch: &Pending,
        chunk: usize,
    ) -> Result<usize, EngineError> {
        let wanted = branch.hidden_inside();
        if wanted.is_none() && self.hidden_inside.is_none() {
            return Ok(0);
        }
        if wanted != self.hidden_inside {
            let held = trunk.cache.truncate(branch.kept)?;
            // Nobody may go on behind keys of rows that something was hidden from.
            trunk.tokens.truncate(held);
            self.hidden_inside = Some(wanted.unwrap_or_default());
        }
        let at = trunk.cache.len();
        if at >= branch.prefix {
            return Ok(0);
        }
        let end = engine.next_border(at, branch.prefix, chunk);
        let part = branch.prompt.get(at..end).unwrap_or_default();
        let mut nothing = NoObserver;
        let pass = Pass::from(&mut nothing).hiding(&branch.knockouts);
        engine.fill_cache(&mut trunk.cache, part, pass, &mut |_| true)?;
        Ok(end - at)
    }

    /// Tells a branch how much of the prefix was read for it, and lets it wait for the rest.
    fn wait(&mut self, mut branch: Pending, read: usize) -> Step {
        branch.tell(|| Event::Prefilled(read));
        if branch.choices.is_empty() {
            return Step::Nothing;
        }
        self.pending.push_front(branch);
        Step::Read(read)
    }

    /// This branch and those behind it that force the same tokens after the same prompt, as many as are read at once.
    fn force(
        &mut self,
        engine: &Engine,
        trunk: &mut Trunk,
        first: Pending,
    ) -> Result<Vec<Pending>, EngineError> {
        let inside = first.hidden_inside();
        let held = trunk.cache.truncate(if inside.is_some() { first.prefix } else { self.prefix })?;
        trunk.tokens.truncate(held);
        let forced = first.forced().cloned().unwrap_or_default();
        let own = first.prompt.len() - held + forced.len().saturating_sub(1);
        let (together, mut group) = (engine.variants_together(own), vec![first]);
        while group.len() < together {
            let alike = |next: &mut Pending| {
                next.forced().is_some_and(|tokens| *tokens == forced)
                    && group
                        .first()
                        .is_some_and(|first| first.prompt == next.prompt && first.kept == next.kept)
                    && next.hidden_inside() == inside
            };
            match self.pending.pop_front_if(alike) {
                Some(next) => group.push(next),
                None => break,
            }
        }
        for branch in &mut group {
            branch.tell(|| Event::Begun(held));
        }
        group.retain(|branch| !branch.choices.is_empty());
        Ok(group)
    }
}

/// A branch cannot begin.
enum Begin {
    Branch(RequestError),
    Trunk(EngineError),
}

impl From<candle_core::Error> for Begin {
    fn from(error: candle_core::Error) -> Self {
        Begin::Trunk(error.into())
    }
}

/// The measurement of the branches' first `prefix` tokens: the union of their rows that end there, over the union of their key spans
/// that begin there.
fn shared(branches: &VecDeque<Pending>, prefix: usize) -> Measurement {
    let (mut rows, mut keys): (Vec<Span>, Vec<Span>) = Default::default();
    let mut seen: (BTreeSet<_>, BTreeSet<_>) = Default::default();
    for Pending { observe, .. } in branches.iter().filter(|branch| branch.observe.any()) {
        let ended = observe.rows.spans.iter().filter(|row| row.end <= prefix);
        rows.extend(ended.filter(|row| seen.0.insert((row.start, row.end))).cloned());
        let begun = observe.keys.iter().filter(|key| key.start < prefix);
        keys.extend(begun.filter(|key| seen.1.insert((key.start, key.end))).cloned());
    }
    let any = branches.iter().any(|branch| branch.observe.any() && !branch.observe.softmax_only);
    let keep = if any { prefix } else { 0 };
    let longest = branches.iter().map(|branch| branch.prompt.len()).max().unwrap_or(prefix);
    // Spans that are in no prompt are told when their branch begins.
    Measurement::shared(rows, keys, longest, keep).unwrap_or_else(|_| Measurement::nothing(longest))
}
