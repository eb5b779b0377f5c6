//! Effects of a session on an answer by paths through the thought before it ([`palimpsest_run::runs::causes::thoughts`]), beside two-hop
//! attention. Sentences are grouped by thirds of their thought.

use std::collections::BTreeMap;

use palimpsest_run::runs::causes::rows::{ThoughtPath, ThoughtRow};

pub const THIRDS: [&str; 3] = ["first", "middle", "last"];

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ThoughtEffects {
    pub whole: Option<f64>,
    pub direct: Option<f64>,
    /// By sentence: drop with the session hidden from its rows too.
    carried: BTreeMap<usize, f64>,
    sentences: usize,
    /// One-hop and two-hop attention.
    pub hops: Option<[f64; 2]>,
}

impl ThoughtEffects {
    pub(super) fn add(&mut self, row: &ThoughtRow, hops: Option<[f64; 2]>) {
        (self.sentences, self.hops) = (row.sentences, hops);
        let drop = row.effect.log_p_drop;
        match (row.path, row.sentence) {
            (ThoughtPath::Whole, _) => self.whole = Some(drop),
            (ThoughtPath::Direct, _) => self.direct = Some(drop),
            (ThoughtPath::Carried, Some(nth)) => _ = self.carried.insert(nth, drop),
            _ => {}
        }
    }

    pub fn through(&self) -> Option<f64> {
        Some(self.whole? - self.direct?)
    }

    /// Sum over the sentences of a third of what each carries beyond the direct effect; `None` unless all sentences were measured.
    pub fn carried(&self, third: usize) -> Option<f64> {
        let direct = self.direct.filter(|_| self.sentences > 0 && self.carried.len() == self.sentences)?;
        let within = |nth: usize| THIRDS.len() * nth / self.sentences == third;
        Some(self.carried.iter().filter(|(nth, _)| within(**nth)).map(|(_, drop)| drop - direct).sum())
    }
}
