//! Splits layers between devices.

use std::ops::Range;

/// Bytes of a decoder's parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// Per layer, with its cache.
    pub layers: Vec<u64>,
    /// Layers of one device, as they share keys; may be empty.
    pub together: Range<usize>,
    /// Embedding, on the first layer's device.
    pub first: u64,
    /// Final norm and output head, on the last layer's device.
    pub last: u64,
}

impl Parts {
    /// Bytes of layer `i`, with embedding or head.
    fn weight(&self, i: usize) -> u64 {
        let first = if i == 0 { self.first } else { 0 };
        let last = if i + 1 == self.layers.len() { self.last } else { 0 };
        self.layers[i].saturating_add(first).saturating_add(last)
    }
}

/// Device of each layer, ascending, given free bytes per device (equal shares if any is unknown).
///
/// Minimises the load of the fullest device over all splits into consecutive runs, so layers fit whenever any such split fits. Every device
/// gets a layer while there are enough that may be apart.
pub fn split(parts: &Parts, free: &[Option<u64>]) -> Vec<usize> {
    let together = parts.together.clone();
    if together.len() > 1 {
        let mut joined = parts.layers.clone();
        let whole = joined[together.clone()].iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        joined.splice(together.clone(), [whole]);
        let mut places = split(&Parts { layers: joined, together: 0..0, ..*parts }, free);
        let place = places[together.start];
        places.splice(together.start..=together.start, together.map(|_| place));
        return places;
    }
    let known: Option<Vec<u64>> = free.iter().copied().collect();
    let free = known.unwrap_or_else(|| vec![1; free.len()]);
    let free: Vec<f64> = free.into_iter().map(|bytes| bytes.max(1) as f64).collect();
    let total: f64 = (0..parts.layers.len()).map(|i| parts.weight(i) as f64).sum();
    let smallest = free.iter().copied().fold(f64::INFINITY, f64::min);
    // Bisect the load of the fullest device; 60 halvings suffice.
    let (mut low, mut high) = (0.0, total / smallest + 1.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if fill(parts, &free, middle).is_some() { high = middle } else { low = middle }
    }
    fill(parts, &free, high).unwrap_or_else(|| vec![0; parts.layers.len()])
}

/// Fills devices in order up to `full` times their free bytes, reserving a layer for each later device; `None` if layers remain.
fn fill(parts: &Parts, free: &[f64], full: f64) -> Option<Vec<usize>> {
    let n = parts.layers.len();
    let mut devices: Vec<usize> = Vec::with_capacity(n);
    for (device, free_bytes) in free.iter().enumerate() {
        let after = free.len() - device - 1;
        let mut held = 0.0;
        while devices.len() < n {
            let begun = devices.last() == Some(&device);
            held += parts.weight(devices.len()) as f64;
            if held > full * free_bytes || (begun && n - devices.len() <= after) {
                break;
            }
            devices.push(device);
        }
    }
    (devices.len() == n).then_some(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(layers: &[u64], first: u64, last: u64) -> Parts {
        Parts { layers: layers.to_vec(), together: 0..0, first, last }
    }

    #[test]
    fn layers_are_split_in_proportion_to_free_memory_with_embedding_and_head_counted_where_they_lie() {
        let even = parts(&[10; 8], 0, 0);
        assert_eq!(split(&even, &[Some(100)]), [0; 8]);
        assert_eq!(split(&even, &[Some(100), Some(100)]), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(split(&even, &[Some(300), Some(100)]), [0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(split(&even, &[Some(100), Some(300)]), [0, 0, 1, 1, 1, 1, 1, 1]);
        // An embedding or head worth two layers moves the border.
        assert_eq!(split(&parts(&[10; 8], 20, 0), &[Some(100), Some(100)]), [0, 0, 0, 1, 1, 1, 1, 1]);
        assert_eq!(split(&parts(&[10; 8], 0, 20), &[Some(100), Some(100)]), [0, 0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(
            split(&parts(&[10, 10, 60, 10, 10, 10, 10], 0, 0), &[Some(1), Some(1)]),
            [0, 0, 0, 1, 1, 1, 1]
        );
    }

    #[test]
    fn where_free_memory_is_unknown_shares_are_equal_and_no_device_goes_without_a_layer() {
        let even = parts(&[10; 6], 0, 0);
        assert_eq!(split(&even, &[None, Some(1)]), [0, 0, 0, 1, 1, 1]);
        assert_eq!(split(&parts(&[10; 5], 0, 0), &[None; 4]), [0, 0, 1, 2, 3]);
        assert_eq!(split(&parts(&[10; 2], 100, 0), &[None; 2]), [0, 1]);
        // More devices than layers: some stay empty.
        assert_eq!(split(&parts(&[10; 2], 0, 0), &[None; 3]), [0, 1]);
    }

    #[test]
    fn layers_that_share_keys_are_on_one_device() {
        let of = |together, free: &[Option<u64>]| split(&Parts { together, ..parts(&[10; 8], 0, 0) }, free);
        let even = [Some(100), Some(100)];
        assert_eq!(of(5..8, &even), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(of(2..7, &even), [0, 0, 1, 1, 1, 1, 1, 1]);
        assert_eq!(of(0..5, &even), [0, 0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(of(0..8, &even), [0; 8]);
        assert_eq!(of(3..4, &even), of(0..0, &even));
        assert_eq!(of(3..8, &[None; 5]), [0, 1, 2, 3, 3, 3, 3, 3]);
    }

    #[test]
    fn a_split_that_fits_is_found_whenever_there_is_one() {
        // All splits of ten unequal layers into three runs, with tight memory.
        let layers = [7, 3, 9, 4, 4, 8, 2, 6, 5, 1];
        let p = parts(&layers, 5, 3);
        let mut tight = 0;
        for (a, b) in (1..9).flat_map(|a| (a + 1..10).map(move |b| (a, b))) {
            let weight = |range: std::ops::Range<usize>| range.map(|i| p.weight(i)).sum::<u64>();
            let free = [weight(0..a), weight(a..b), weight(b..10)];
            let found = split(&p, &free.map(Some));
            assert!(found.is_sorted());
            for (device, free) in free.iter().enumerate() {
                let held: u64 = (0..10).filter(|&i| found[i] == device).map(|i| p.weight(i)).sum();
                assert!(held <= *free, "{free:?} {found:?}");
                tight += usize::from(held == *free);
            }
        }
        assert_eq!(tight, 3 * 36, "every device is full, since all of them together are");
    }
}
