//! Evictions of a request: what their policies read while its prompts are read, and what they keep.

use super::pending::Pending;
use super::shelf::Trunk;
use crate::attention::{Event, LayerHoles, Observer, Point, Wanted};
use crate::engine::request::Task;
use crate::engine::{Engine, EngineError, Measurement};
use crate::evict::{Collector, Evict, Eviction};

/// Evictions of one request's branches.
#[derive(Default)]
pub(super) struct Evicting {
    /// The collectors of the shared prefix.
    collected: Vec<(Key, Collector)>,
    /// The latest eviction, its tokens, and the keys that it kept: branches with equal ones share it.
    kept: Option<(Eviction, Vec<u32>, LayerHoles)>,
}

/// Identity of a collector: policy and budget, the first row after the eviction, and the end of what the policy reads.
#[derive(PartialEq, Clone)]
struct Key(Evict, usize, usize);

impl Key {
    fn of(eviction: &Eviction, prompt: usize) -> Self {
        let end = if eviction.evict.question { prompt } else { eviction.at };
        Key(eviction.evict.clone(), eviction.at, end)
    }
}

/// The branch's eviction in progress: its policy reads on from the shared prefix.
pub(super) struct Collecting {
    eviction: Eviction,
    key: Key,
    collector: Collector,
}

/// A measurement and the collectors of the same rows.
struct Both<'a>(&'a mut Measurement, &'a mut [(Key, Collector)]);

impl Observer for Both<'_> {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        self.1.iter().fold(self.0.wants(point), |all, (_, collector)| all.and(collector.wants(point)))
    }

    fn observe(&mut self, event: Event<'_>) -> candle_core::Result<()> {
        self.0.observe(event)?;
        self.1.iter_mut().try_for_each(|(_, collector)| collector.observe(event))
    }
}

/// The reason why a branch's eviction cannot be served.
pub(super) fn refusal(branch: &Pending) -> Option<String> {
    let eviction = branch.evict.as_ref()?;
    let (at, n, evict) = (eviction.at, branch.prompt.len(), &eviction.evict);
    let observe = &branch.observe;
    let why = if at < branch.prefix || at == 0 || at >= n {
        format!("the first row after it, {at}, is not in the branch's own part of the {n} tokens")
    } else if !branch.knockouts.is_empty() {
        "knock-outs cannot be combined with it".to_owned()
    } else if observe.norms || observe.top_keys.is_some() || observe.attributes() {
        "norms, largest keys, attributions and routes are not measured under it".to_owned()
    } else if observe.likeliest.is_some() {
        "likelihoods of the prompt are not measured under it".to_owned()
    } else if branch.choices.iter().any(|choice| matches!(choice.task, Task::Force(_))) {
        "answers cannot be forced under it".to_owned()
    } else {
        return eviction.check(n).err().map(|error| error.to_string());
    };
    Some(format!("eviction `{evict}`: {why}"))
}

impl Evicting {
    /// For the branches of a request with a shared prefix of `prefix` tokens.
    pub fn new<'a>(branches: impl Iterator<Item = &'a Pending>, prefix: usize, engine: &Engine) -> Self {
        let mut evicting = Evicting::default();
        for branch in branches {
            let Some(eviction) = &branch.evict else { continue };
            let key = Key::of(eviction, branch.prompt.len());
            let reads = eviction.first_row().is_some_and(|first| first < prefix);
            if reads && !evicting.collected.iter().any(|(known, _)| *known == key) {
                evicting.collected.push((key, eviction.collector(branch.prompt.len(), engine.decoder())));
            }
        }
        evicting
    }

    /// Reads a part of the shared prefix.
    pub fn read(
        &mut self,
        (engine, trunk): (&Engine, &mut Trunk),
        part: &[u32],
        measurement: &mut Measurement,
    ) -> Result<(), EngineError> {
        let mut both = Both(measurement, &mut self.collected);
        engine.fill_cache(&mut trunk.cache, part, &mut both, &mut |_| true)
    }

    /// Starts a branch's eviction; `None` if its branch has none, or the one before kept the same, which is then set.
    pub fn begin(&mut self, branch: &mut Pending, engine: &Engine) -> Option<Collecting> {
        let eviction = branch.evict.clone()?;
        let key = Key::of(&eviction, branch.prompt.len());
        let read = branch.prompt.get(..key.2).unwrap_or_default();
        if let Some((.., holes)) =
            self.kept.as_ref().filter(|(known, tokens, _)| known.keeps_as(&eviction) && tokens == read)
        {
            let holes = holes.clone();
            branch.evicted(&eviction, &holes, engine);
            return None;
        }
        self.kept = None;
        let collector = match self.collected.iter().find(|(known, _)| *known == key) {
            Some((_, collector)) => collector.clone(),
            None => eviction.collector(branch.prompt.len(), engine.decoder()),
        };
        Some(Collecting { eviction, key, collector })
    }

    /// Reads the next chunk that the policy needs, then sets the branch's kept keys. Returns the tokens read, and what is left to do.
    pub fn go_on(
        &mut self,
        mut collecting: Collecting,
        branch: &mut Pending,
        (engine, trunk): (&Engine, &mut Trunk),
        chunk: usize,
    ) -> Result<(usize, Option<Collecting>), EngineError> {
        let Key(.., end) = collecting.key;
        let held = trunk.cache.len();
        if held < end {
            let to = engine.next_border(held, end, chunk);
            let part = branch.prompt.get(held..to).unwrap_or_default();
            engine.fill_cache(&mut trunk.cache, part, &mut collecting.collector, &mut |_| true)?;
            return Ok((to - held, Some(collecting)));
        }
        let Collecting { eviction, key, collector } = collecting;
        let holes = eviction.choose(&trunk.cache, &collector, engine.decoder(), &branch.prompt)?;
        branch.evicted(&eviction, &holes, engine);
        self.kept = Some((eviction, branch.prompt.get(..key.2).unwrap_or_default().to_vec(), holes));
        Ok((0, None))
    }
}
