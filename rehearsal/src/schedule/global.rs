//! Races in global memory between blocks that communicate: two warps use a byte, one writes it, and the uses are unordered in the
//! causality order of PTX's "Memory Consistency Model". It is built from:
//!
//! - program order of a thread; lanes of a warp count as one;
//! - a barrier: everything its block did before comes before everything after;
//! - a release observed by an acquire: a fence, then an atomic operation or strong store; in another thread an atomic operation or strong
//!   load that reads it, possibly through other atomics, then a fence. Release and acquire operations need no fence. Scope: device or
//!   system.
//!
//! The order is transitive: a thread's fence after a barrier releases its whole block's earlier uses. Blocks run one after the other, so
//! an operation observes everything that reached its address before it.

use std::collections::{BTreeMap, HashMap};

use crate::abi::{orders, uses};

/// Bytes of device memory tracked together.
const PAGE: u64 = 4096;

/// One use of a byte: its warp and block, the block's barrier count and the warp's fence count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Use {
    block: u32,
    barriers: u32,
    warp: u32,
    fences: u32,
    /// Strong uses of a byte may run concurrently.
    strong: bool,
}

/// Last uses of a byte: the write, and the reads since.
#[derive(Clone, Default)]
struct Byte {
    write: Option<Use>,
    reads: Vec<Use>,
}

/// Uses known to be finished: per block, all before a barrier, and those of single warps before a fence.
#[derive(Clone, Default)]
struct Known(BTreeMap<u32, OfBlock>);

#[derive(Clone, Default)]
struct OfBlock {
    barriers: u32,
    fences: BTreeMap<u32, u32>,
}

impl Known {
    fn has(&self, one: &Use) -> bool {
        self.0.get(&one.block).is_some_and(|of_block| {
            one.barriers < of_block.barriers
                || of_block.fences.get(&one.warp).is_some_and(|fences| one.fences < *fences)
        })
    }

    fn learn(&mut self, other: &Known) {
        for (block, theirs) in &other.0 {
            let mine = self.0.entry(*block).or_default();
            mine.barriers = mine.barriers.max(theirs.barriers);
            for (warp, fences) in &theirs.fences {
                let known = mine.fences.entry(*warp).or_default();
                *known = (*known).max(*fences);
            }
        }
    }
}

/// A warp's uses, and its knowledge beyond its block's.
#[derive(Clone, Default)]
struct Warp {
    fences: u32,
    known: Known,
}

/// A thread's state for its next release, and observations for its next acquire.
#[derive(Default)]
struct Own {
    released: Known,
    observed: Known,
}

#[derive(Default)]
pub struct Uses {
    block: u32,
    barriers: u32,
    /// Knowledge of the block at its last barrier.
    known: Known,
    warps: Vec<Warp>,
    threads: HashMap<u32, Own>,
    bytes: HashMap<u64, Vec<Byte>>,
    /// By address: knowledge passed to an operation that observes it.
    messages: HashMap<u64, Known>,
}

impl Uses {
    pub fn begin(&mut self, block: u32, warps: usize) {
        (self.block, self.barriers) = (block, 1);
        self.known = Known::default();
        self.warps = vec![Warp::default(); warps];
        self.threads.clear();
    }

    pub fn barrier(&mut self) {
        self.barriers += 1;
        for warp in &mut self.warps {
            self.known.learn(&std::mem::take(&mut warp.known));
        }
    }

    /// Records a thread's use. Returns an error that names the racing use.
    pub fn note(&mut self, thread: u32, at: u64, bytes: u32, what: i32) -> Result<(), String> {
        let is = |flag| what & flag != 0;
        let warp = thread / 32;
        match what & uses::KINDS {
            uses::FENCES => {
                if is(orders::ACQUIRES) {
                    self.acquire(thread);
                }
                if is(orders::RELEASES) {
                    self.release(thread);
                }
                return Ok(());
            }
            kind => self.check(warp, at, bytes, kind, is(orders::STRONG))?,
        }
        let writes = what & uses::KINDS != uses::READS;
        if !is(orders::STRONG) {
            if writes {
                self.messages.remove(&at);
            }
            return Ok(());
        }
        if is(orders::OBSERVES)
            && let Some(message) = self.messages.get(&at)
        {
            self.threads.entry(thread).or_default().observed.learn(message);
            if is(orders::ACQUIRES) {
                self.acquire(thread);
            }
        }
        if writes {
            if is(orders::RELEASES) {
                self.release(thread);
            }
            let message = self.messages.entry(at).or_default();
            // A store starts a new release sequence; an atomic operation continues the old one.
            if what & uses::KINDS == uses::WRITES {
                *message = Known::default();
            }
            if let Some(own) = self.threads.get(&thread) {
                message.learn(&own.released);
            }
        }
        Ok(())
    }

    /// Adds the observed releases to the thread's knowledge.
    fn acquire(&mut self, thread: u32) {
        if let Some(own) = self.threads.get_mut(&thread) {
            self.warps[thread as usize / 32].known.learn(&std::mem::take(&mut own.observed));
        }
    }

    /// Publishes the thread's knowledge to observers of its later operations.
    fn release(&mut self, thread: u32) {
        let number = thread / 32;
        let warp = &mut self.warps[number as usize];
        warp.fences += 1;
        let mut released = self.known.clone();
        released.learn(&warp.known);
        let own = released.0.entry(self.block).or_default();
        own.barriers = own.barriers.max(self.barriers);
        own.fences.insert(number, warp.fences);
        self.threads.entry(thread).or_default().released = released;
    }

    /// Is the use ordered before this thread's block and warp?
    fn follows(&self, warp: u32, one: &Use) -> bool {
        one.block == self.block && (one.warp == warp || one.barriers < self.barriers)
            || self.known.has(one)
            || self.warps[warp as usize].known.has(one)
    }

    fn check(&mut self, warp: u32, at: u64, bytes: u32, kind: i32, strong: bool) -> Result<(), String> {
        let fences = self.warps[warp as usize].fences;
        let mine = Use { block: self.block, barriers: self.barriers, warp, fences, strong };
        for at in at..at + u64::from(bytes) {
            let (page, place) = (at / PAGE, (at % PAGE) as usize);
            let mut byte = match self.bytes.get_mut(&page) {
                Some(page) => std::mem::take(&mut page[place]),
                None => Byte::default(),
            };
            let races = |other: &Use| !(strong && other.strong || self.follows(warp, other));
            if let Some(other) = byte.write.filter(races) {
                return Err(race(at, &mine, kind, &other, "writes"));
            }
            if kind == uses::READS {
                // This block's reads come last. Knowing a later one implies knowing an earlier one.
                while byte.reads.last().is_some_and(|last| {
                    last.block == mine.block && (last.barriers < mine.barriers || last.warp == mine.warp)
                }) {
                    byte.reads.pop();
                }
                byte.reads.push(mine);
            } else {
                if let Some(other) = byte.reads.iter().find(|one| races(one)) {
                    return Err(race(at, &mine, kind, other, "reads"));
                }
                byte.reads.clear();
                byte.write = Some(mine);
            }
            let page = self.bytes.entry(page).or_insert_with(|| vec![Byte::default(); PAGE as usize]);
            page[place] = byte;
        }
        Ok(())
    }
}

fn race(at: u64, mine: &Use, kind: i32, other: &Use, does: &str) -> String {
    format!(
        "a race: warp {} of block {} {} the byte of device memory at {at:#x}, which warp {} of block {} {does}, and neither a \
         barrier nor a release and its acquire come between",
        mine.warp,
        mine.block,
        if kind == uses::READS { "reads" } else { "writes" },
        other.warp,
        other.block,
    )
}
