//! Runs a launch: blocks over host threads, a block's threads in order, with CUDA's warps and barriers. [`crate::driver`] passes a checked
//! [`Launch`]; kernel code calls [`crate::runtime`] to check its accesses.
//!
//! A kernel without barriers and warp operations runs thread by thread. Otherwise it is a state machine: each thread runs until it waits,
//! lanes of a warp (or threads of a warpgroup) that wait for the same operation exchange values, and the barrier opens when all running
//! threads wait at it. Results do not depend on the number of host threads: blocks of a kernel with atomics run one after the other.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{Block, FRAGMENT, Kernel, PARAM_BYTES, Seen, Thread, Trace, UNIT, waits};
use crate::settings::settings;
use crate::stop;

mod global;
mod group;
mod matrix;
mod warp;

use global::Uses;
use group::{GROUP, Pending};
use warp::WARP;

/// Below this many threads, parallel execution does not pay.
const WORTH_SHARING: u64 = 30_000;

thread_local! {
    /// The kernel thread running on this host thread, for messages.
    static RUNNING: Cell<*const Thread> = const { Cell::new(std::ptr::null()) };
}

/// Position of the kernel running on this host thread: the instruction `at`, block and thread.
pub fn place(at: &str) -> String {
    let at = if at.is_empty() { String::new() } else { format!(", at `{at}`") };
    let thread = RUNNING.get();
    if thread.is_null() {
        return at;
    }
    // SAFETY: it is set to a live thread before its code runs and cleared when its launch ends.
    let (block, tid) = unsafe { ((*(*thread).block).ctaid, (*thread).tid) };
    format!("{at}, block {block:?}, thread {tid:?}")
}

/// A kernel with its grid and parameters.
pub struct Launch {
    kernel: &'static Kernel,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: Box<[u8; PARAM_BYTES]>,
}

impl Launch {
    /// `shared`: dynamic shared memory in bytes.
    pub fn new(
        kernel: &'static Kernel,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        params: Box<[u8; PARAM_BYTES]>,
    ) -> Self {
        Self { kernel, grid, block, shared, params }
    }
}

/// Records a use of global memory, or a fence. The error names the racing use.
///
/// # Safety
/// The thread and its block are live, and no other thread of the launch runs.
pub unsafe fn note(thread: *const Thread, at: u64, bytes: u32, what: i32) -> Result<(), String> {
    // SAFETY: the caller vouches for them; `uses` is null or the launch's.
    let (thread, uses) = unsafe { (&*thread, (*(*thread).block).uses.cast::<Uses>().as_mut()) };
    uses.map_or(Ok(()), |uses| uses.note(thread.linear, at, bytes, what))
}

/// Runs a launch to completion.
pub fn run(launch: &Launch) {
    let count = |n: &[u32; 3]| n.iter().map(|n| u64::from(*n)).product::<u64>();
    let (blocks, threads) = (count(&launch.grid), count(&launch.block));
    let next = AtomicU64::new(0);
    let work = || {
        let mut worker = Worker::new(launch);
        loop {
            let block = next.fetch_add(1, Ordering::Relaxed);
            if block >= blocks {
                break;
            }
            // A GPU runs blocks in any order.
            worker.run_block(if settings().asynchronous { blocks - 1 - block } else { block });
        }
        RUNNING.set(std::ptr::null());
    };
    let alone = launch.kernel.atomics != 0 || blocks == 1 || blocks * threads < WORTH_SHARING;
    let workers = if alone { 1 } else { (settings().threads as u64).min(blocks) };
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(work);
        }
        work();
    });
}

/// One host thread, with the memory of its current block.
struct Worker<'a> {
    launch: &'a Launch,
    block: Box<Block>,
    /// Kernel threads: all of a block if they wait for each other, else one, reused.
    threads: Vec<*mut Thread>,
    waiting: Vec<i32>,
    /// Backing memory of `threads`.
    _state: Vec<u128>,
    local: Vec<u128>,
    shared: Vec<Line>,
    /// Backing memory of `block.seen`.
    _seen: Vec<Seen>,
    /// Last uses of each byte of shared memory; empty if race detection is off.
    traces: Vec<Trace>,
    /// Backing memory of `block.generic`; empty without warpgroup operations.
    generic: Vec<u32>,
    /// Warpgroup products that were not waited for.
    pending: Vec<Pending>,
    /// Backing memory of `block.uses`, if race detection is on and blocks communicate.
    _uses: Option<Box<Uses>>,
}

/// Shared memory alignment: the widest instructions need 128 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; 128]);

/// 16-byte units needed for `bytes`.
fn units(bytes: usize) -> usize {
    bytes.div_ceil(size_of::<u128>())
}

impl<'a> Worker<'a> {
    fn new(launch: &'a Launch) -> Self {
        let Launch { kernel, grid, block, shared, params } = launch;
        let of_a_block: usize = block.iter().map(|n| *n as usize).product();
        let count = if kernel.waits != 0 { of_a_block } else { 1 };
        // 16-byte units keep registers and local memory aligned.
        let stride = units((kernel.thread_bytes as usize).max(size_of::<Thread>()));
        let local_units = units(kernel.local_bytes as usize);
        let mut state = vec![0_u128; stride * count];
        let mut local = vec![0_u128; local_units * count];
        let lines = (kernel.shared_static as usize + *shared as usize).div_ceil(size_of::<Line>());
        let mut shared_memory = vec![Line([0; 128]); lines];
        let mut seen = vec![Seen { from: 0, to: 0 }; kernel.accesses as usize];
        let traced = if settings().races { kernel.shared_static + shared } else { 0 };
        let mut traces = vec![Trace::default(); traced as usize];
        let units =
            if kernel.groups != 0 { (kernel.shared_static + shared).div_ceil(UNIT as u32) } else { 0 };
        let mut generic = vec![0_u32; units as usize];
        let mut uses = (settings().races && kernel.atomics != 0).then(Box::<Uses>::default);
        let mut block = Box::new(Block {
            params: params.as_ptr().cast_mut(),
            shared: shared_memory.as_mut_ptr().cast(),
            shared_bytes: kernel.shared_static + shared,
            shared_static: kernel.shared_static,
            ntid: *block,
            nctaid: *grid,
            ctaid: [0; 3],
            seen: seen.as_mut_ptr(),
            traces: if traces.is_empty() { std::ptr::null_mut() } else { traces.as_mut_ptr() },
            barriers: 1,
            uses: uses.as_deref_mut().map_or(std::ptr::null_mut(), |uses| (&raw mut *uses).cast()),
            generic: if generic.is_empty() { std::ptr::null_mut() } else { generic.as_mut_ptr() },
        });
        let mut places = Places::new(block.ntid);
        let mut thread_of = |slot: usize| {
            let header = Thread {
                block: &raw mut *block,
                local: if local_units == 0 {
                    std::ptr::null_mut()
                } else {
                    local[slot * local_units..].as_mut_ptr().cast()
                },
                local_bytes: kernel.local_bytes,
                tid: places.next(),
                linear: slot as u32,
                resume: 0,
                waits: waits::RUNS,
                op: 0,
                mask: 0,
                value: 0,
                lane: 0,
                clamp: 0,
                result: 0,
                predicate: 0,
                at: c"".as_ptr(),
                fragment: [0; FRAGMENT],
                sums: std::ptr::null_mut(),
                fences: 0,
            };
            let thread = state[slot * stride..].as_mut_ptr().cast::<Thread>();
            // SAFETY: `stride` units hold a thread, and `state` has them for each slot.
            unsafe { thread.write(header) };
            thread
        };
        let threads: Vec<_> = (0..count).map(&mut thread_of).collect();
        Self {
            launch,
            block,
            waiting: vec![waits::RUNS; threads.len()],
            threads,
            _state: state,
            local,
            shared: shared_memory,
            _seen: seen,
            traces,
            generic,
            pending: Vec::new(),
            _uses: uses,
        }
    }

    fn run_block(&mut self, number: u64) {
        let [x, y, _] = self.launch.grid.map(u64::from);
        self.block.ctaid = [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32];
        // Unwritten shared memory is NaN.
        self.shared.fill(Line([0xFF; 128]));
        self.traces.fill(Trace::default());
        self.generic.fill(0);
        self.pending.clear();
        self.pending.resize_with(self.threads.len().div_ceil(GROUP), Pending::default);
        self.block.barriers = 1;
        let warps = self.launch.block.iter().product::<u32>().div_ceil(WARP as u32);
        if let Some(uses) = self.uses() {
            uses.begin(number as u32, warps as usize);
        }
        if self.launch.kernel.waits != 0 { self.run_together() } else { self.run_each() }
    }

    /// Through the same pointer that kernel code uses.
    fn uses(&mut self) -> Option<&mut Uses> {
        // SAFETY: null, or `self.uses`, which has no other holder while no thread of the kernel runs.
        unsafe { self.block.uses.cast::<Uses>().as_mut() }
    }

    /// Runs one thread until it waits or ends; returns its state.
    fn go_on(&self, thread: *mut Thread) -> i32 {
        RUNNING.set(thread);
        // SAFETY: the thread and its block are live, and its code is the kernel that its state was made for.
        unsafe { (self.launch.kernel.run)(thread) }
    }

    fn run_each(&mut self) {
        let thread = self.threads[0];
        let count = self.launch.block.iter().product();
        let mut places = Places::new(self.launch.block);
        for linear in 0..count {
            self.local.fill(u128::MAX);
            // SAFETY: as in `go_on`; nothing else uses the thread.
            unsafe {
                (*thread).tid = places.next();
                (*thread).linear = linear;
                (*thread).resume = 0;
            }
            self.go_on(thread);
        }
    }

    fn run_together(&mut self) {
        self.local.fill(u128::MAX);
        self.waiting.fill(waits::RUNS);
        for thread in &self.threads {
            // SAFETY: as above.
            unsafe { ((**thread).resume, (**thread).fences) = (0, 0) };
        }
        loop {
            let moved = self.run_to_the_barrier() | self.run_groups();
            let count = |what| self.waiting.iter().filter(|waiting| **waiting == what).count();
            let (ended, at_barrier) = (count(waits::DONE), count(waits::AT_BARRIER));
            if ended == self.threads.len() {
                return;
            }
            if at_barrier > 0 && at_barrier + ended == self.threads.len() {
                self.block.barriers += 1;
                if let Some(uses) = self.uses() {
                    uses.barrier();
                }
                self.waiting.iter_mut().filter(|waiting| **waiting == waits::AT_BARRIER).for_each(
                    |waiting| {
                        *waiting = waits::RUNS;
                    },
                );
            } else if !moved {
                self.deadlock(at_barrier, ended);
            }
        }
    }

    /// Runs each warp until none of its lanes can continue. Returns true if any ran.
    fn run_to_the_barrier(&mut self) -> bool {
        let mut moved = false;
        for from in (0..self.threads.len()).step_by(WARP) {
            let lanes = from..self.threads.len().min(from + WARP);
            loop {
                let mut at_operation = false;
                for lane in lanes.clone() {
                    if self.waiting[lane] == waits::RUNS {
                        self.waiting[lane] = self.go_on(self.threads[lane]);
                        moved = true;
                    }
                    at_operation |= self.waiting[lane] == waits::AT_WARP_OP;
                }
                if !at_operation
                    || !warp::exchange(&self.threads[lanes.clone()], &mut self.waiting[lanes.clone()])
                {
                    break;
                }
            }
        }
        moved
    }

    /// Runs each warpgroup's operation, where all of its threads wait for it. Returns true if any ran.
    fn run_groups(&mut self) -> bool {
        if self.launch.kernel.groups == 0 {
            return false;
        }
        let mut moved = false;
        let groups = self.threads.chunks(GROUP).zip(self.waiting.chunks_mut(GROUP));
        for ((threads, waiting), pending) in groups.zip(&mut self.pending) {
            let Some(first) = waiting.iter().position(|waiting| *waiting == waits::AT_GROUP_OP) else {
                continue;
            };
            // SAFETY: threads of a block live as long as it runs, and only its worker touches them.
            let at = |slot: usize| unsafe { (*threads[slot]).at };
            let refuse = |slot: usize, why: &str| unsafe { group::fault(&*threads[slot], why) };
            if threads.len() < GROUP || waiting.contains(&waits::DONE) {
                refuse(first, "a part of the warpgroup's 128 threads has ended, or never was");
            }
            if !waiting.iter().all(|waiting| *waiting == waits::AT_GROUP_OP) {
                continue;
            }
            if let Some(other) = (0..GROUP).find(|slot| at(*slot) != at(0)) {
                refuse(other, "threads of the warpgroup are at different instructions");
            }
            // SAFETY: as above.
            unsafe { group::run(threads, pending, &self.threads) };
            waiting.fill(waits::RUNS);
            moved = true;
        }
        moved
    }

    fn deadlock(&self, at_barrier: usize, ended: usize) -> ! {
        // A thread waiting for its warp is more informative than one at the barrier.
        let of_waits = |what| self.waiting.iter().position(|waiting| *waiting == what);
        let stuck = [waits::AT_GROUP_OP, waits::AT_WARP_OP, waits::AT_BARRIER].into_iter().find_map(of_waits);
        let at = stuck.map_or_else(String::new, |slot| {
            RUNNING.set(self.threads[slot]);
            // SAFETY: the thread is live, and `at` is a literal of the kernel, or of this module.
            unsafe { CStr::from_ptr((*self.threads[slot]).at) }.to_string_lossy().into_owned()
        });
        let of = self.threads.len();
        let for_group = self.waiting.iter().filter(|waiting| **waiting == waits::AT_GROUP_OP).count();
        let for_lanes = of - at_barrier - ended - for_group;
        let groups = if for_group > 0 { format!("{for_group} for their warpgroup, ") } else { String::new() };
        let why = format!(
            "of {of} threads {at_barrier} wait at a barrier, {for_lanes} for other lanes of their warp, {groups}{ended} have ended, \
             and none can go on"
        );
        stop_kernel(&why, &at)
    }
}

struct Places {
    ntid: [u32; 3],
    next: [u32; 3],
}

impl Places {
    fn new(ntid: [u32; 3]) -> Self {
        Self { ntid, next: [0; 3] }
    }

    fn next(&mut self) -> [u32; 3] {
        let place = self.next;
        self.next[0] += 1;
        for axis in 0..2 {
            if self.next[axis] == self.ntid[axis] {
                self.next[axis] = 0;
                self.next[axis + 1] += 1;
            }
        }
        place
    }
}

/// Stops the program because of a kernel fault.
pub fn stop_kernel(what: &str, at: &str) -> ! {
    let kernel = crate::memory::memory().running.as_ref().map_or("a kernel", |(op, _)| op.what);
    stop::fault(&format!("{kernel}: {what}{}", place(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_run_along_x_first() {
        let mut places = Places::new([2, 3, 2]);
        let all: Vec<_> = (0..12).map(|_| places.next()).collect();
        let expected: Vec<_> = (0..12).map(|i| [i % 2, i / 2 % 3, i / 6]).collect();
        assert_eq!(all, expected);
    }
}
