//! Prompt cache.
//!
//! Each cached prompt is a **trunk**: a contiguous KV cache of the whole prompt, since prefill kernels need contiguous keys; shared
//! prefixes are stored once per trunk. A new prompt continues the trunk with the longest common prefix: in place if little is lost (another
//! question about the same documents), else in a **fork** (another conversation under the same system prompt), since copying rows takes a
//! hundredth of the time of prefill. Windowed and linear-attention layers can roll back to marks only. A prompt continues trunks of its own
//! [`Scope`] only.
//!
//! Trunks share a token budget with answers; the least recently used one is evicted, unless it is being read or extended.

use super::Scope;
use crate::model::Cache;

/// Kept tokens per lost token that justify continuing in place.
const KEPT_FOR_ONE_LOST: usize = 8;

/// Trunk capacity is a multiple of ROOM, plus one spare token per MORE tokens.
const ROOM: usize = 256;
const MORE: usize = 8;

/// A cached prompt.
pub(super) struct Trunk {
    pub id: u64,
    pub scope: Scope,
    pub cache: Cache,
    pub tokens: Vec<u32>,
    /// True while a prompt is read into it.
    pub busy: bool,
    /// True after a failed forward pass: it cannot be extended, but running answers may still read earlier rows.
    pub dead: bool,
    used: u64,
}

/// Best cached prefix of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CacheMatch {
    /// Scope of the prompt, and of the trunk.
    pub scope: Scope,
    pub trunk: Option<u64>,
    /// Prompt tokens that are reused.
    pub kept: usize,
    /// Length of the common prefix; the trunk may be unable to roll back there.
    pub common: usize,
    /// True to continue in place, false to fork.
    pub within: bool,
}

impl CacheMatch {
    /// Nothing of any trunk is reused.
    pub fn anew(self) -> Self {
        CacheMatch { trunk: None, kept: 0, within: false, ..self }
    }
}

pub(super) struct Shelf {
    trunks: Vec<Trunk>,
    /// An empty cache as template.
    like: Cache,
    /// Maximum tokens of a trunk.
    context: usize,
    most: usize,
    clock: u64,
    evicted: usize,
}

impl Shelf {
    /// `cache` has the capacity of a whole context.
    pub fn new(cache: Cache) -> Self {
        let context = cache.capacity();
        // Release the capacity.
        let like = cache.empty_like(1).unwrap_or(cache);
        Shelf { trunks: Vec::new(), like, context, most: 1, clock: 0, evicted: 0 }
    }

    /// Keeps at most `most` trunks.
    pub fn keep(&mut self, most: usize) {
        self.most = most.max(1);
    }

    pub fn context(&self) -> usize {
        self.context
    }

    pub fn held(&self) -> usize {
        self.trunks.iter().map(|trunk| trunk.tokens.len()).sum()
    }

    /// Capacity of all trunks in tokens. Reused memory is cleared, so all of it is resident.
    pub fn taken(&self) -> usize {
        self.trunks.iter().map(|trunk| trunk.cache.capacity()).sum()
    }

    /// Capacity for a trunk of `tokens` tokens, with room for a conversation to continue.
    pub fn room(&self, tokens: usize) -> usize {
        let room = tokens.saturating_add(tokens / MORE);
        room.next_multiple_of(ROOM).min(self.context).max(tokens)
    }

    pub fn len(&self) -> usize {
        self.trunks.len()
    }

    pub fn take_evicted(&mut self) -> usize {
        std::mem::take(&mut self.evicted)
    }

    pub fn get(&self, id: u64) -> Option<&Trunk> {
        self.trunks.iter().find(|trunk| trunk.id == id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Trunk> {
        self.trunks.iter_mut().find(|trunk| trunk.id == id)
    }

    /// Best match in `scope` for a prompt whose tokens from `first` on must be read. `border` rounds down to a position where prompts can be
    /// split.
    pub fn longest_match(
        &self,
        scope: Scope,
        prompt: &[u32],
        first: usize,
        border: impl Fn(usize) -> usize,
    ) -> CacheMatch {
        let mut best = CacheMatch { scope, trunk: None, kept: 0, common: 0, within: false };
        let mut used = 0;
        for trunk in self.trunks.iter().filter(|trunk| !trunk.dead && trunk.scope == scope) {
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

    /// Additional tokens of memory for a prompt of `tokens` tokens at `found`, in a trunk of capacity `room`.
    pub fn cost(&self, found: &CacheMatch, tokens: usize, room: usize) -> usize {
        match found.trunk.filter(|_| found.within).and_then(|id| self.get(id)) {
            Some(trunk) if trunk.cache.capacity() >= tokens => 0,
            Some(trunk) => room.saturating_sub(trunk.cache.capacity()),
            None => room,
        }
    }

    /// Evicts least recently used trunks, except `stay`, to at most `most` tokens and room for `more` trunks. Returns success.
    pub fn make_room(&mut self, most: usize, more: usize, stay: &[u64]) -> bool {
        while self.taken() > most || self.trunks.len() + more > self.most {
            let free = |trunk: &Trunk| !trunk.busy && !stay.contains(&trunk.id);
            let idle = self.trunks.iter().enumerate().filter(|(_, trunk)| free(trunk));
            let Some((at, _)) = idle.min_by_key(|(_, trunk)| trunk.used) else { return false };
            self.trunks.remove(at);
            self.evicted += 1;
        }
        true
    }

    /// Returns a busy trunk of capacity `room` that holds the shared prefix. A trunk continued in place must have no readers beyond it.
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
        let (id, scope) = (clock, found.scope);
        self.trunks.push(Trunk { id, scope, cache, tokens: held, busy: true, dead: false, used: clock });
        Ok(clock)
    }

    /// Marks a trunk as reusable and drops trunks of its scope that are prefixes of it, except `stay`.
    pub fn give_back(&mut self, id: u64, stay: &[u64]) {
        self.clock += 1;
        let clock = self.clock;
        let Some(trunk) = self.get_mut(id) else { return };
        (trunk.busy, trunk.used) = (false, clock);
        let (scope, tokens) = (trunk.scope, trunk.tokens.clone());
        self.trunks.retain(|other| {
            let needed = other.id == id || other.busy || stay.contains(&other.id) || other.scope != scope;
            needed || !tokens.starts_with(&other.tokens)
        });
    }

    pub fn bury(&mut self, id: u64) {
        if let Some(trunk) = self.get_mut(id) {
            (trunk.busy, trunk.dead) = (false, true);
            trunk.tokens.clear();
        }
    }

    pub fn clear(&mut self) {
        self.trunks.clear();
    }

    pub fn sweep(&mut self, stay: &[u64]) {
        self.trunks.retain(|trunk| !trunk.dead || stay.contains(&trunk.id));
    }
}

/// True if a trunk of `tokens` tokens may be continued in place after its first `kept`.
pub(super) fn loses_little(tokens: usize, kept: usize) -> bool {
    tokens.saturating_sub(kept) * KEPT_FOR_ONE_LOST <= kept
}

pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use candle_core::{DType, Device};

    use super::*;
    use crate::attention::NoObserver;
    use crate::model::{Decoder, Fill, ModelDescription, OpenModel, Phase};

    const ONE: Scope = Scope([1; 32]);
    const OTHER: Scope = Scope([2; 32]);

    fn decoder() -> Decoder {
        let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/llama-tiny/config.json");
        let description = ModelDescription::from_config_file(Path::new(config)).unwrap();
        OpenModel::weightless(description.spec, Fill::Zeros).load(&Device::Cpu, DType::F32).unwrap()
    }

    fn found(shelf: &Shelf, scope: Scope, prompt: &[u32]) -> CacheMatch {
        shelf.longest_match(scope, prompt, prompt.len() - 2, |at| at)
    }

    /// Reads a prompt into the trunk that was found, or into a new one; returns the reused tokens.
    fn read(shelf: &mut Shelf, decoder: &Decoder, found: &CacheMatch, prompt: &[u32]) -> usize {
        let id = shelf.take(found, prompt.len(), prompt.len()).unwrap();
        let trunk = shelf.get_mut(id).unwrap();
        let (rest, held) = (&prompt[found.kept..], trunk.cache.len());
        decoder.forward(rest, 1, &mut trunk.cache, Phase::Prefill, &mut NoObserver).unwrap();
        trunk.tokens.extend_from_slice(rest);
        shelf.give_back(id, &[]);
        held
    }

    #[test]
    fn a_prompt_continues_and_replaces_trunks_of_its_own_scope_only() {
        let decoder = decoder();
        let mut shelf = Shelf::new(decoder.cache(64).unwrap());
        shelf.keep(8);
        let prompt: Vec<u32> = (3..43).collect();
        let mut read_in = |scope: Scope, prompt: &[u32]| {
            let found = found(&shelf, scope, prompt);
            let held = read(&mut shelf, &decoder, &found, prompt);
            (held, shelf.len())
        };
        assert_eq!(read_in(ONE, &prompt[..20]), (0, 1));
        // The prefix of another scope is neither found nor dropped.
        assert_eq!(read_in(OTHER, &prompt), (0, 2));
        // In place, in a fork, and again in the other scope.
        assert_eq!(read_in(ONE, &prompt[..30]), (20, 2));
        assert_eq!(read_in(ONE, &[&prompt[..12], &[60, 61, 62]].concat()), (12, 3));
        assert_eq!(read_in(OTHER, &prompt), (38, 3));
        let unknown = CacheMatch { scope: Scope::default(), trunk: None, kept: 0, common: 0, within: false };
        assert_eq!(found(&shelf, Scope::default(), &prompt), unknown);
        // A new trunk drops the prefix in its scope.
        let anew = found(&shelf, ONE, &prompt).anew();
        assert_eq!((read(&mut shelf, &decoder, &anew, &prompt), shelf.len()), (0, 3));
        assert_eq!(found(&shelf, ONE, &prompt).common, 40);
    }
}
