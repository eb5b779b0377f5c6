//! Device memory: allocations, their last uses, and recently freed ones. Every access, by kernels, copies, products and the rest, goes
//! through [`Memory::access`]. It detects accesses outside live allocations of the running device, use after free, and unordered uses by
//! two streams. Device memory is host memory: an address is a pointer. Fresh memory is filled with 0xFF (NaN in every float), freed memory
//! with [`POISON`].
//!
//! Driver calls allocate and free; running work accesses. Nothing here knows of queues: an [`Op`] carries its own order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::order::{self, Op, Stamp};
use crate::settings::{MOST_DEVICES, MOST_MEMORY, settings};
use crate::stop;

mod space;

pub use space::LARGE;
use space::{Space, drop_pages};

/// Bytes of address space per device.
const WINDOW: u64 = 2 * MOST_MEMORY;
/// First address of device 0.
const BASE: u64 = 0x2000_0000_0000;
/// Allocation granularity in bytes.
pub const GRANULE: u64 = 512;
/// Fill byte of freed memory: a large negative number in every float.
pub const POISON: u8 = 0xFE;
/// Freed allocations remembered.
const REMEMBERED: usize = 8192;
const REMEMBERED_BYTES: u64 = 64 << 20;
/// Unordered uses printed; all are counted.
const SHOWN: u64 = 12;

/// Location of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a device.
    Device(usize),
    /// Page-locked host memory, visible to all devices.
    Host,
}

impl Place {
    fn number(self) -> usize {
        match self {
            Self::Device(device) => device,
            Self::Host => MOST_DEVICES,
        }
    }

    /// The owner of the window that holds an address.
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

/// Memory usage of a device.
#[derive(Clone, Copy, Default)]
pub struct Usage {
    /// Capacity in bytes.
    pub total: u64,
    /// Bytes requested and not freed.
    pub live: u64,
    /// Peak of `live`.
    pub peak: u64,
    /// Peak of `live` since the pool's mark was last reset.
    pub mark: u64,
    /// Bytes in use, rounded to granules.
    pub held: u64,
    /// Peak of `held`.
    pub held_peak: u64,
    /// Number of allocations.
    pub allocations: u64,
    /// Number of allocations that did not fit.
    pub refused: u64,
    /// Allocations freed while another device was current.
    pub freed_elsewhere: u64,
}

struct Allocation {
    bytes: u64,
    place: Place,
    /// Last write, and every stream's last read since.
    write: Stamp,
    reads: Vec<Stamp>,
    /// Still counted as held. A free counts when called, and happens when its stream reaches it.
    counted: bool,
}

struct Freed {
    bytes: u64,
    place: Place,
    by: Stamp,
}

/// See the module documentation.
pub struct Memory {
    spaces: Vec<Space>,
    live: BTreeMap<u64, Allocation>,
    freed: BTreeMap<u64, Freed>,
    /// Freed allocations, oldest first, and the bytes of the small ones, whose pages stay.
    remembered: VecDeque<u64>,
    remembered_bytes: u64,
    /// By device.
    pub devices: Vec<Usage>,
    /// The running kernel and its device.
    pub running: Option<(Op, usize)>,
    /// Number of unordered uses.
    pub unordered: u64,
}

/// Locks the memory of all devices. Hold it briefly: kernel threads use it too.
pub fn memory() -> MutexGuard<'static, Memory> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory of all devices, if not locked.
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

    /// Allocates; `None` if the device is out of memory.
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
            // SAFETY: the range was just taken, is at least this long, and is not shared yet.
            unsafe { std::ptr::write_bytes(at as *mut u8, 0xFF, Space::rounded(bytes) as usize) };
        }
        self.live
            .insert(at, Allocation { bytes, place, write: op.stamp(), reads: Vec::new(), counted: true });
        Some(at)
    }

    /// Uncounts an allocation when its free is called; the free itself may happen later. `here`: the current device. An error is a fault.
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

    /// Frees, as a use of the whole allocation. An error is a fault.
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
                // SAFETY: the range was handed out with this size and has no owner any more.
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

    /// Frees all memory of a device, at the end of its context.
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

    /// Checks and records a use of `bytes` bytes at `at` by work of `device`. Returns the allocation's bounds; an error is a fault.
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

    /// [`Memory::access`] for a copy between devices, which may use memory of either.
    pub fn access_anywhere(&mut self, op: &Op, at: u64, bytes: u64, write: bool) -> Result<(), String> {
        let device = match Place::of(at) {
            Some(Place::Device(device)) => device,
            _ => 0,
        };
        self.access(op, device, at, bytes, write).map(|_| ())
    }

    /// Location of a live address.
    pub fn place(&self, at: u64) -> Option<Place> {
        let (from, allocation) = self.live.range(..=at).next_back()?;
        (at < from + allocation.bytes).then_some(allocation.place)
    }

    /// Describes an address outside live memory; continues a sentence with "which".
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

/// Records a use and reports each earlier use that is not ordered before it. Returns the number of reports. `before`: reports so far; only
/// the first ones are printed. An error is the report, if the first one must end the program.
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
