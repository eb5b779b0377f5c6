//! Stable random draws: sampled data are part of a dataset's digest, so these values must never change. ChaCha20 keyed by SHA-256 of
//! purpose, seed and name; sampling is implemented here because `rand` may change its shuffles and ranges.

use rand::rngs::ChaCha20Rng;
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

pub struct Draws(ChaCha20Rng);

impl Draws {
    pub fn new(purpose: &str, seed: u64, name: &str) -> Self {
        let mut hash = Sha256::new();
        for part in [purpose.as_bytes(), &seed.to_le_bytes(), name.as_bytes()] {
            // Length prefix: distinct triples hash distinct bytes.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Draws(ChaCha20Rng::from_seed(hash.finalize().into()))
    }

    /// Uniform in `0..n`; 0 if `n` < 2. Rejects values below `2^64 mod n` against modulo bias.
    pub fn below(&mut self, n: u64) -> u64 {
        if n < 2 {
            return 0;
        }
        let rejected = n.wrapping_neg() % n;
        loop {
            let draw = self.0.next_u64();
            if draw >= rejected {
                return draw % n;
            }
        }
    }

    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.index(last + 1);
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_draws_of_a_seed_never_change() {
        // Computed independently: SHA-256, the RFC 8439 block function with a zero nonce, and the rules above.
        let mut draws = Draws::new("test", 7, "case");
        let mut order: Vec<usize> = (0..8).collect();
        draws.shuffle(&mut order);
        assert_eq!(
            (draws.below(1000), draws.below(1_000_000), order),
            (101, 998_518, vec![5, 6, 0, 2, 1, 4, 3, 7])
        );
    }

    #[test]
    fn a_range_is_drawn_evenly_and_never_left() {
        let mut draws = Draws::new("test", 0, "");
        let mut counts = [0u32; 7];
        for _ in 0..7000 {
            counts[draws.index(7)] += 1;
        }
        assert!(counts.iter().all(|&n| (850..1150).contains(&n)), "{counts:?}");
        assert_eq!((draws.below(0), draws.below(1)), (0, 0));
    }

    #[test]
    fn purpose_seed_and_name_each_change_the_stream() {
        let first = |purpose, seed, name| Draws::new(purpose, seed, name).below(u64::MAX);
        let draws = [first("a", 0, "b"), first("ab", 0, ""), first("a", 1, "b"), first("a", 0, "c")];
        for (i, draw) in draws.iter().enumerate() {
            assert!(!draws[..i].contains(draw));
        }
    }
}
