//! Address space of one device: ranges in a reserved window of virtual memory, so that an address alone tells its owner. Hands out ranges
//! and takes them back; [`super::Memory`] decides what they hold and when to reuse them.

use std::collections::{BTreeMap, VecDeque};

use super::{BASE, GRANULE, WINDOW};

/// Ranges of at least this size start on a page; their pages are released when freed.
pub const LARGE: u64 = 64 << 10;
const PAGE: u64 = 4096;

pub struct Space {
    from: u64,
    reserved: bool,
    /// Start of the part never handed out.
    fresh: u64,
    /// Returned ranges by size, oldest first.
    free: BTreeMap<u64, VecDeque<u64>>,
}

impl Space {
    /// Reserves nothing until the first range is taken.
    pub fn new(number: usize) -> Self {
        let from = BASE + number as u64 * WINDOW;
        Self { from, reserved: false, fresh: from, free: BTreeMap::new() }
    }

    /// Size of the range for `bytes`.
    pub fn rounded(bytes: u64) -> u64 {
        bytes.next_multiple_of(if bytes >= LARGE { PAGE } else { GRANULE })
    }

    /// With a gap after it, so that an overrun does not reach the next range. Gaps after large ranges use no memory.
    fn with_gap(bytes: u64) -> u64 {
        Self::rounded(bytes) + if bytes >= LARGE { LARGE } else { GRANULE }
    }

    pub fn take(&mut self, bytes: u64) -> Result<u64, String> {
        let size = Self::with_gap(bytes);
        if let Some(at) = self.free.get_mut(&size).and_then(VecDeque::pop_front) {
            return Ok(at);
        }
        if !self.reserved {
            self.reserve()?;
        }
        if bytes >= LARGE {
            self.fresh = self.fresh.next_multiple_of(PAGE);
        }
        if self.fresh + size > self.from + WINDOW {
            return Err(format!(
                "the {} TiB of addresses of this card are used up by ranges of ever new sizes",
                WINDOW >> 40
            ));
        }
        let at = self.fresh;
        self.fresh += size;
        Ok(at)
    }

    pub fn give_back(&mut self, at: u64, bytes: u64) {
        self.free.entry(Self::with_gap(bytes)).or_default().push_back(at);
    }

    fn reserve(&mut self) -> Result<(), String> {
        // SAFETY: the flags let the call fail rather than take addresses that are in use; it uses no memory.
        let got = unsafe {
            libc::mmap(
                self.from as *mut libc::c_void,
                WINDOW as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if got as u64 != self.from {
            return Err(format!(
                "{} TiB of addresses at {:#x} cannot be reserved ({}); lift the limit on virtual memory \
                 (ulimit -v unlimited, vm.overcommit_memory 0 or 1)",
                WINDOW >> 40,
                self.from,
                std::io::Error::last_os_error()
            ));
        }
        self.reserved = true;
        Ok(())
    }
}

/// Returns the pages of a large range to the system; they read as zeros afterwards.
pub fn drop_pages(at: u64, bytes: u64) {
    // SAFETY: the range was handed out by a `Space`, starts on a page, and nothing live is in it.
    unsafe { libc::madvise(at as *mut libc::c_void, Space::rounded(bytes) as usize, libc::MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_come_back() {
        let mut space = Space::new(super::super::MOST_DEVICES + 1);
        let sizes = [1, 512, 513, LARGE, LARGE + 1, 70_000, 3];
        let mut ranges: Vec<_> =
            sizes.iter().map(|size| (space.take(*size).unwrap(), Space::rounded(*size))).collect();
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].0 + pair[0].1 + GRANULE <= pair[1].0, "{pair:?}");
        }
        let at = space.take(1000).unwrap();
        space.give_back(at, 1000);
        assert_eq!(space.take(1024).unwrap(), at);
        assert_ne!(space.take(1024).unwrap(), at);
    }
}
