//! The cards' memory: what is allocated, who used it last, and what was freed not long ago. Every access, of
//! kernels and of copies, products and the rest, comes through [`Memory::access`], which finds what lies
//! outside a live allocation of the card at work, what was freed, and what two streams use without an order
//! between them. Device memory is the host's: an address is a pointer. Fresh memory is 0xFF bytes (NaN in
//! every float), freed memory [`POISON`].
//!
//! The driver's calls allocate and free; running work accesses. Nothing here knows of queues: an [`Op`] says
//! what its work comes after.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::order::{self, Op, Stamp};
use crate::settings::{MOST_DEVICES, MOST_MEMORY, settings};
use crate::stop;

mod space;

pub use space::LARGE;
use space::{Space, drop_pages};

/// Bytes of address space for each card.
const WINDOW: u64 = 2 * MOST_MEMORY;
/// Where the first card's addresses begin.
const BASE: u64 = 0x2000_0000_0000;
/// A card hands out memory in these units.
pub const GRANULE: u64 = 512;
/// What freed memory is filled with: 0xFE, a large negative number in every float.
pub const POISON: u8 = 0xFE;
/// How many freed allocations are remembered, and how many bytes of small ones.
const REMEMBERED: usize = 8192;
const REMEMBERED_BYTES: u64 = 64 << 20;
/// How many unordered uses are printed; all are counted.
const SHOWN: u64 = 12;

/// Where memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a card.
    Device(usize),
    /// Page-locked memory of the host, which all cards see.
    Host,
}

impl Place {
    fn number(self) -> usize {
        match self {
            Self::Device(device) => device,
            Self::Host => MOST_DEVICES,
        }
    }

    /// Whose window an address is in.
    pub fn of(at: u64) -> Option<Self> {
        let number = usize::try_from(at.checked_sub(BASE)? / WINDOW).ok()?;
        match number {
            MOST_DEVICES => Some(Self::Host),
            _ if number < MOST_DEVICES => Some(Self::Device(number)),
            _ => None,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Device(device) => write!(f, "device {device}"),
            Self::Host => write!(f, "page-locked host memory"),
        }
    }
}

/// What a card has handed out.
#[derive(Clone, Copy, Default)]
pub struct Usage {
    /// Bytes there are.
    pub total: u64,
    /// Bytes asked for and not freed, and the most there ever were.
    pub live: u64,
    /// The most `live` ever was.
    pub peak: u64,
    /// The same since the pool's mark was last set.
    pub mark: u64,
    /// The same in whole granules: what the card's memory is short of.
    pub held: u64,
    /// The most `held` ever was.
    pub held_peak: u64,
    /// Allocations.
    pub allocations: u64,
    /// Allocations that did not fit.
    pub refused: u64,
    /// Allocations that were freed while another card was current.
    pub freed_elsewhere: u64,
}

struct Allocation {
    bytes: u64,
    place: Place,
    /// The last write, and every stream's last read since.
    write: Stamp,
    reads: Vec<Stamp>,
    /// Whether it still counts as held: a free counts when it is asked for, and happens when its stream comes
    /// to it.
    counted: bool,
}

struct Freed {
    bytes: u64,
    place: Place,
    by: Stamp,
}

/// See the module's documentation.
pub struct Memory {
    spaces: Vec<Space>,
    live: BTreeMap<u64, Allocation>,
    freed: BTreeMap<u64, Freed>,
    /// The freed ones, oldest first, and how many bytes of them are small ranges, whose pages stay.
    remembered: VecDeque<u64>,
    remembered_bytes: u64,
    /// By device.
    pub devices: Vec<Usage>,
    /// The kernel that runs, and its device.
    pub running: Option<(Op, usize)>,
    /// Uses that nothing orders.
    pub unordered: u64,
}

/// The memory of all cards. To be held for short: kernels' threads come here too.
pub fn memory() -> MutexGuard<'static, Memory> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory of all cards, unless it is being used.
pub fn memory_if_idle() -> Option<MutexGuard<'static, Memory>> {
    MEMORY.try_lock().ok()
}

static MEMORY: LazyLock<Mutex<Memory>> = LazyLock::new(|| Mutex::new(Memory::new()));

impl Memory {
    fn new() -> Self {
        let usage = Usage { total: settings().memory, ..Usage::default() };
        Self {
            spaces: (0..=MOST_DEVICES).map(Space::new).collect(),
            live: BTreeMap::new(),
            freed: BTreeMap::new(),
            remembered: VecDeque::new(),
            remembered_bytes: 0,
            devices: vec![usage; settings().devices],
            running: None,
            unordered: 0,
        }
    }

    /// Allocates; `None` if the card has not so much left.
    pub fn allocate(&mut self, op: &Op, place: Place, bytes: u64) -> Option<u64> {
        if let Place::Device(device) = place {
            let usage = &mut self.devices[device];
            let held =
                bytes.checked_next_multiple_of(GRANULE).and_then(|bytes| usage.held.checked_add(bytes));
            let Some(held) = held.filter(|held| *held <= usage.total) else {
                usage.refused += 1;
                return None;
            };
            usage.held = held;
            usage.held_peak = usage.held_peak.max(held);
            usage.live += bytes;
            usage.peak = usage.peak.max(usage.live);
            usage.mark = usage.mark.max(usage.live);
            usage.allocations += 1;
        }
        let at = self.spaces[place.number()].take(bytes).unwrap_or_else(|why| stop::fault(&why));
        if settings().arithmetic {
            // SAFETY: the range was just taken, is at least this long, and nobody knows of it yet.
            unsafe { std::ptr::write_bytes(at as *mut u8, 0xFF, Space::rounded(bytes) as usize) };
        }
        self.live
            .insert(at, Allocation { bytes, place, write: op.stamp(), reads: Vec::new(), counted: true });
        Some(at)
    }

    /// Takes an allocation off the card's books: its free was asked for, whenever it will happen. `here`: the
    /// card that is current. The error is a fault.
    pub fn forget(&mut self, what: &str, at: u64, here: usize) -> Result<(), String> {
        let Some(allocation) = self.live.get_mut(&at) else {
            return Err(format!("{what} frees {at:#x}, which {}", self.describe(at)));
        };
        if !std::mem::replace(&mut allocation.counted, false) {
            return Err(format!("{what} frees {at:#x}, which was freed before"));
        }
        if let Place::Device(device) = allocation.place {
            let usage = &mut self.devices[device];
            usage.held -= allocation.bytes.next_multiple_of(GRANULE);
            usage.live -= allocation.bytes;
            usage.freed_elsewhere += u64::from(device != here);
        }
        Ok(())
    }

    /// Frees, as a use of the whole allocation. The error is a fault.
    pub fn free(&mut self, op: &Op, at: u64) -> Result<(), String> {
        let Some(mut allocation) = self.live.remove(&at) else {
            return Err(format!("{} frees {at:#x}, which {}", op.what, self.describe(at)));
        };
        self.unordered += order_use(&mut allocation, op, true, self.unordered)?;
        let Allocation { bytes, place, .. } = allocation;
        if bytes >= LARGE {
            drop_pages(at, bytes);
        } else {
            if settings().arithmetic {
                // SAFETY: the range was handed out with this size and is nobody's any more.
                unsafe { std::ptr::write_bytes(at as *mut u8, POISON, bytes as usize) };
            }
            self.remembered_bytes += bytes;
        }
        self.freed.insert(at, Freed { bytes, place, by: op.stamp() });
        self.remembered.push_back(at);
        while self.remembered.len() > REMEMBERED || self.remembered_bytes > REMEMBERED_BYTES {
            let Some(oldest) = self.remembered.pop_front() else { break };
            if let Some(Freed { bytes, place, .. }) = self.freed.remove(&oldest) {
                self.remembered_bytes -= if bytes < LARGE { bytes } else { 0 };
                self.spaces[place.number()].give_back(oldest, bytes);
            }
        }
        Ok(())
    }

    /// Frees all of a card's memory, as its context's end does.
    pub fn free_all(&mut self, op: &Op, device: usize) -> Result<(), String> {
        let here =
            |(at, a): (&u64, &Allocation)| (a.place == Place::Device(device)).then_some((*at, a.counted));
        let all: Vec<_> = self.live.iter().filter_map(here).collect();
        for (at, counted) in all {
            if counted {
                self.forget(op.what, at, device)?;
            }
            self.free(op, at)?;
        }
        Ok(())
    }

    /// Checks one use of `bytes` bytes at `at` by work of `device`, and notes it. Gives the allocation's
    /// bounds; the error is a fault.
    pub fn access(
        &mut self,
        op: &Op,
        device: usize,
        at: u64,
        bytes: u64,
        write: bool,
    ) -> Result<(u64, u64), String> {
        let verb = if write { "writes" } else { "reads" };
        let found = self.live.range_mut(..=at).next_back().map(|(from, allocation)| (*from, allocation));
        let Some((from, allocation)) = found.filter(|(from, a)| at < from + a.bytes) else {
            return Err(format!("{} {verb} {bytes} bytes at {at:#x}, which {}", op.what, self.describe(at)));
        };
        if at + bytes > from + allocation.bytes {
            return Err(format!(
                "{} {verb} {bytes} bytes at {at:#x}, {} more than the allocation of {} bytes at {from:#x} \
                 has there ({})",
                op.what,
                at + bytes - from - allocation.bytes,
                allocation.bytes,
                allocation.place
            ));
        }
        if let Place::Device(owner) = allocation.place
            && owner != device
        {
            return Err(format!(
                "{} on device {device} {verb} {bytes} bytes of device {owner} at {at:#x}",
                op.what
            ));
        }
        self.unordered += order_use(allocation, op, write, self.unordered)?;
        Ok((from, from + allocation.bytes))
    }

    /// As [`Memory::access`], for a copy between cards, which may use either's memory.
    pub fn access_anywhere(&mut self, op: &Op, at: u64, bytes: u64, write: bool) -> Result<(), String> {
        let device = match Place::of(at) {
            Some(Place::Device(device)) => device,
            _ => 0,
        };
        self.access(op, device, at, bytes, write).map(|_| ())
    }

    /// Where an address lies, if it lies in live memory.
    pub fn place(&self, at: u64) -> Option<Place> {
        let (from, allocation) = self.live.range(..=at).next_back()?;
        (at < from + allocation.bytes).then_some(allocation.place)
    }

    /// What an address outside live memory is near to, to go on from "which".
    fn describe(&self, at: u64) -> String {
        if let Some((from, freed)) = self.freed.range(..=at).next_back()
            && at < from + freed.bytes.max(1)
        {
            return format!(
                "is byte {} of an allocation of {} bytes on {} that was freed by {} on {}: use after free",
                at - from,
                freed.bytes,
                freed.place,
                freed.by.what,
                order::stream_name(freed.by.stream)
            );
        }
        let Some(place) = Place::of(at) else {
            return if at < 4096 { "is a null pointer".into() } else { "is no device address".into() };
        };
        let near = self.live.range(..=at).next_back().filter(|(_, allocation)| allocation.place == place);
        match near {
            Some((from, allocation)) if at == *from => {
                format!("is an allocation of {} bytes", allocation.bytes)
            }
            Some((from, allocation)) if at < from + allocation.bytes => {
                format!("is byte {} of an allocation of {} bytes", at - from, allocation.bytes)
            }
            Some((from, allocation)) => format!(
                "is {} bytes past the end of an allocation of {} bytes at {from:#x} on {place}",
                at - from - allocation.bytes,
                allocation.bytes
            ),
            None => format!("is an address of {place} where nothing is allocated"),
        }
    }
}

/// Notes a use and complains if an earlier one is not before it: how many complaints there were. `before`:
/// how many there had been, for only the first ones are printed. An error is the complaint, where the first
/// is to end the program.
fn order_use(allocation: &mut Allocation, op: &Op, write: bool, before: u64) -> Result<u64, String> {
    let mut unordered = 0;
    let verb = |write: bool| if write { "writes" } else { "reads" };
    let mut check = |earlier: &Stamp, wrote: bool| {
        if op.follows(earlier) {
            return Ok(());
        }
        unordered += 1;
        if before + unordered > SHOWN {
            return Ok(());
        }
        let line = format!(
            "unordered streams: {} on {} {} {} bytes on {} that {} on {} {}; no event and no \
             synchronisation comes between",
            op.what,
            order::stream_name(op.stream),
            verb(write),
            allocation.bytes,
            allocation.place,
            earlier.what,
            order::stream_name(earlier.stream),
            verb(wrote)
        );
        if settings().stop_at_unordered {
            return Err(line);
        }
        stop::complain(&line);
        Ok(())
    };
    check(&allocation.write, true)?;
    if write {
        allocation.reads.iter().try_for_each(|read| check(read, false))?;
        allocation.write = op.stamp();
        allocation.reads.clear();
    } else if let Some(read) = allocation.reads.iter_mut().find(|read| read.stream == op.stream) {
        *read = op.stamp();
    } else {
        allocation.reads.push(op.stamp());
    }
    Ok(unordered)
}
