//! The prompts that are kept, so that others which begin alike need not read their beginning again.
//!
//! A tree by its tokens: every prompt that is kept is a path from the root to a leaf. In memory each leaf is a **trunk**, a contiguous
//! cache of its whole path, because the kernels that read a prompt want its keys in one piece; what leaves have in common is there
//! once for each of them. A new prompt goes on where the trunk that shares most with it leaves it. It goes on *in* that trunk where
//! hardly anything of the trunk is lost by that (another question about the same documents), and in a **fork** where more would be
//! lost (another conversation under the same system text): copying rows takes a hundredth of the time of reading them. Layers with
//! windows and linear-attention layers can go back to their marks only, so with them a prompt begins at the last mark that it
//! shares.
//!
//! Trunks are kept within a budget of tokens, which is shared with what is generated, and the one that was used longest ago makes
//! room. One that a sequence reads, or that a prompt is being read into, stays.

use crate::model::Cache;

/// Tokens of a trunk that are kept for each one that may be lost by going on in it.
const KEPT_FOR_ONE_LOST: usize = 8;

/// A trunk's room is a multiple of so many tokens, and one token for so many that it holds is more than it needs.
const ROOM: usize = 256;
const MORE: usize = 8;

/// A prompt that is kept.
pub(super) struct Trunk {
    pub id: u64,
    pub cache: Cache,
    /// The tokens in its cache.
    pub tokens: Vec<u32>,
    /// True if a prompt is being read into it.
    pub busy: bool,
    /// True if nothing can go on from it: a forward pass failed half way. Sequences read on what was there before.
    pub dead: bool,
    used: u64,
}

/// Cached tokens that a prompt can go on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CacheMatch {
    /// From which trunk, if any.
    pub trunk: Option<u64>,
    /// After how many of the prompt's tokens.
    pub kept: usize,
    /// The number of tokens that prompt and trunk have in common; the trunk may be unable to go back there.
    pub common: usize,
    /// True to go on in the trunk itself, not in a fork.
    pub within: bool,
}

/// All trunks.
pub(super) struct Shelf {
    trunks: Vec<Trunk>,
    /// Empty: what trunks are made like.
    like: Cache,
    /// Most tokens of a trunk.
    context: usize,
    most: usize,
    clock: u64,
    evicted: usize,
}

impl Shelf {
    /// No trunks yet. `cache` has room for the whole context; at most `most` trunks are kept.
    pub fn new(cache: Cache, most: usize) -> Self {
        let context = cache.capacity();
        // Of that room nothing is used.
        let like = cache.empty_like(1).unwrap_or(cache);
        Shelf { trunks: Vec::new(), like, context, most: most.max(1), clock: 0, evicted: 0 }
    }

    /// Keeps at most `most` trunks.
    pub fn keep(&mut self, most: usize) {
        self.most = most.max(1);
    }

    /// Tokens of a context.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Tokens that trunks hold.
    pub fn held(&self) -> usize {
        self.trunks.iter().map(|trunk| trunk.tokens.len()).sum()
    }

    /// Tokens whose memory trunks take: all that they have room for, since memory that is used again is cleared and so touched.
    pub fn taken(&self) -> usize {
        self.trunks.iter().map(|trunk| trunk.cache.capacity()).sum()
    }

    /// The room of a trunk of `tokens` tokens: some more, for a conversation to go on in.
    pub fn room(&self, tokens: usize) -> usize {
        let room = tokens.saturating_add(tokens / MORE);
        room.next_multiple_of(ROOM).min(self.context).max(tokens)
    }

    /// Trunks.
    pub fn len(&self) -> usize {
        self.trunks.len()
    }

    /// Evicted trunks since this was asked last.
    pub fn take_evicted(&mut self) -> usize {
        std::mem::take(&mut self.evicted)
    }

    pub fn get(&self, id: u64) -> Option<&Trunk> {
        self.trunks.iter().find(|trunk| trunk.id == id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Trunk> {
        self.trunks.iter_mut().find(|trunk| trunk.id == id)
    }

    /// Where a prompt goes on of which tokens from `first` on must be read, at a `border`: the last position up to another one at which
    /// a prompt can be cut.
    pub fn longest_match(&self, prompt: &[u32], first: usize, border: impl Fn(usize) -> usize) -> CacheMatch {
        let mut best = CacheMatch { trunk: None, kept: 0, common: 0, within: false };
        let mut used = 0;
        for trunk in self.trunks.iter().filter(|trunk| !trunk.dead) {
            let common = common(&trunk.tokens, prompt);
            best.common = best.common.max(common);
            let kept = trunk.cache.back_to(border(common.min(first)));
            if kept > best.kept || (kept > 0 && kept == best.kept && trunk.used > used) {
                let within = !trunk.busy && loses_little(trunk.tokens.len(), kept);
                best = CacheMatch { trunk: Some(trunk.id), kept, within, ..best };
                used = trunk.used;
            }
        }
        best
    }

    /// Tokens of memory that a prompt of `tokens` tokens takes at a place in a trunk of such room, beside what is taken already.
    pub fn cost(&self, found: &CacheMatch, tokens: usize, room: usize) -> usize {
        match found.trunk.filter(|_| found.within).and_then(|id| self.get(id)) {
            Some(trunk) if trunk.cache.capacity() >= tokens => 0,
            Some(trunk) => room.saturating_sub(trunk.cache.capacity()),
            None => room,
        }
    }

    /// Drops trunks until what is taken is at most `most` and there is a place for `more` of them: the one that was used longest
    /// ago first, and none that `stays`. Returns whether that is reached.
    pub fn make_room(&mut self, most: usize, more: usize, stays: impl Fn(u64) -> bool) -> bool {
        while self.taken() > most || self.trunks.len() + more > self.most {
            let idle = self.trunks.iter().enumerate().filter(|(_, trunk)| !trunk.busy && !stays(trunk.id));
            let Some((at, _)) = idle.min_by_key(|(_, trunk)| trunk.used) else { return false };
            self.trunks.remove(at);
            self.evicted += 1;
        }
        true
    }

    /// A trunk for a prompt of `tokens` tokens, with room for so many, busy from now on, that holds what it shares with the one at its
    /// place. One that is gone on in must not be read by anybody beyond that.
    pub fn take(&mut self, found: &CacheMatch, tokens: usize, room: usize) -> candle_core::Result<u64> {
        self.clock += 1;
        let clock = self.clock;
        if let Some(trunk) = found.trunk.filter(|_| found.within).and_then(|id| self.get_mut(id)) {
            if trunk.cache.capacity() < tokens {
                trunk.cache.enlarge(room)?;
            }
            let kept = trunk.cache.truncate(found.kept)?;
            trunk.tokens.truncate(kept);
            (trunk.busy, trunk.used) = (true, clock);
            return Ok(trunk.id);
        }
        let (cache, held) = match found.trunk.and_then(|id| self.get_mut(id)) {
            Some(trunk) => {
                trunk.used = clock;
                let cache = trunk.cache.fork(found.kept, room)?;
                let held = trunk.tokens.get(..cache.len()).unwrap_or_default().to_vec();
                (cache, held)
            }
            None => (self.like.empty_like(room)?, Vec::new()),
        };
        self.trunks.push(Trunk { id: clock, cache, tokens: held, busy: true, dead: false, used: clock });
        Ok(clock)
    }

    /// Takes note of what was read into a trunk. It is kept for others, and takes the place of those that hold nothing else;
    /// none that `stays`.
    pub fn give_back(&mut self, id: u64, stays: impl Fn(u64) -> bool) {
        self.clock += 1;
        let clock = self.clock;
        let Some(trunk) = self.get_mut(id) else { return };
        (trunk.busy, trunk.used) = (false, clock);
        let tokens = trunk.tokens.clone();
        self.trunks.retain(|other| {
            other.id == id || other.busy || stays(other.id) || !tokens.starts_with(&other.tokens)
        });
    }

    /// Lets nobody go on from a trunk any more.
    pub fn bury(&mut self, id: u64) {
        if let Some(trunk) = self.get_mut(id) {
            (trunk.busy, trunk.dead) = (false, true);
            trunk.tokens.clear();
        }
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.trunks.clear();
    }

    /// Drops dead trunks that nobody reads.
    pub fn sweep(&mut self, stays: impl Fn(u64) -> bool) {
        self.trunks.retain(|trunk| !trunk.dead || stays(trunk.id));
    }
}

/// True if a trunk of so many tokens may be gone on in after the first `kept` of them.
pub(super) fn loses_little(tokens: usize, kept: usize) -> bool {
    tokens.saturating_sub(kept) * KEPT_FOR_ONE_LOST <= kept
}

/// Tokens that two begin with.
pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
