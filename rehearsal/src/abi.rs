//! ABI between translated kernels and the runtime: the mirror of `kernel/abi.h`. Change both. The field order and the enum values are the
//! contract; do not reorder.

use std::ffi::{c_char, c_void};

/// One block of a launch.
#[repr(C)]
pub struct Block {
    /// Kernel parameters in PTX layout, [`PARAM_BYTES`] long.
    pub params: *mut u8,
    /// Static shared memory, then dynamic.
    pub shared: *mut u8,
    /// Size of `shared`.
    pub shared_bytes: u32,
    /// Static part of `shared_bytes`.
    pub shared_static: u32,
    /// Threads per block.
    pub ntid: [u32; 3],
    /// Blocks of the grid.
    pub nctaid: [u32; 3],
    /// Index of this block.
    pub ctaid: [u32; 3],
    /// [`Kernel::accesses`] entries, one per memory instruction. Each worker thread has its own array and zeroes it at launch.
    pub seen: *mut Seen,
    /// One per byte of shared memory; null if race detection is off.
    pub traces: *mut Trace,
    /// Barriers passed by the block, counted from 1.
    pub barriers: u32,
    /// Global memory uses; null if race detection is off.
    pub uses: *mut c_void,
    /// Last generic-proxy write of each [`UNIT`] of shared memory: see `kernel/group.h`. Null without warpgroup operations.
    pub generic: *mut u32,
}

/// Bytes of shared memory per entry of [`Block::generic`].
pub const UNIT: usize = 16;
/// Bits of the thread in such an entry; the fence count follows.
pub const THREAD_BITS: u32 = 11;

/// Last uses of one byte of shared memory: see `kernel/race.h`. Zero: none.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trace {
    /// The last write.
    pub written: u32,
    /// The last read.
    pub read: u32,
}

/// One thread; the kernel's registers follow it in memory.
#[repr(C)]
pub struct Thread {
    /// The thread's block.
    pub block: *mut Block,
    /// Local memory, or null.
    pub local: *mut u8,
    /// Size of `local`.
    pub local_bytes: u32,
    /// Index in the block.
    pub tid: [u32; 3],
    /// Linear index in the block.
    pub linear: u32,
    /// Resume point; 0 is the entry.
    pub resume: i32,
    /// One of [`waits`].
    pub waits: i32,
    /// Warp operation: one of [`warp_op`].
    pub op: i32,
    /// Mask of participating lanes.
    pub mask: u32,
    /// This lane's operand.
    pub value: u32,
    /// Shuffle lane or distance.
    pub lane: u32,
    /// Shuffle clamp and segment mask, packed as in PTX.
    pub clamp: u32,
    /// Result of the operation.
    pub result: u32,
    /// Result predicate of a vote or shuffle.
    pub predicate: i32,
    /// The instruction text, for messages.
    pub at: *const c_char,
    /// Registers of a matrix operation: operands, then results.
    pub fragment: [u32; FRAGMENT],
    /// Accumulator registers of `wgmma`.
    pub sums: *mut u32,
    /// Number of `fence.proxy.async` executed.
    pub fences: u32,
}

/// Kinds of global memory use: `enum Uses`.
pub mod uses {
    /// Read.
    pub const READS: i32 = 0;
    /// Write.
    pub const WRITES: i32 = 1;
    /// Read and write, as atomic operations do.
    pub const UPDATES: i32 = 2;
    /// Fence: orders earlier and later uses.
    pub const FENCES: i32 = 5;
    /// Mask of the kind bits.
    pub const KINDS: i32 = 7;
}

/// Memory-order flags beside a use: `enum Orders`.
pub mod orders {
    /// Strong operation: other blocks may access the byte concurrently.
    pub const STRONG: i32 = 8;
    /// The value read may synchronise with a release.
    pub const OBSERVES: i32 = 16;
    /// Acquire.
    pub const ACQUIRES: i32 = 32;
    /// Release.
    pub const RELEASES: i32 = 64;
}

/// Thread states: `enum Waits`.
pub mod waits {
    /// Runnable.
    pub const RUNS: i32 = 0;
    /// Waits at the block's barrier.
    pub const AT_BARRIER: i32 = 1;
    /// Waits for the other lanes of its warp.
    pub const AT_WARP_OP: i32 = 2;
    /// Finished.
    pub const DONE: i32 = 3;
    /// Waits for the other threads of its warpgroup.
    pub const AT_GROUP_OP: i32 = 4;
}

/// Flags of [`warp_op::GROUP_MMA`]: `enum GroupFlags`.
#[allow(missing_docs, reason = "named after the immediates of `wgmma.mma_async`")]
pub mod group_flags {
    pub const ADDS: u32 = 1;
    pub const NEGATES_A: u32 = 2;
    pub const NEGATES_B: u32 = 4;
    pub const TRANSPOSES_A: u32 = 8;
    pub const TRANSPOSES_B: u32 = 16;
    pub const A_IN_REGISTERS: u32 = 32;
}

/// Warp operations: `enum WarpOp`.
#[allow(missing_docs, reason = "PTX's own names")]
pub mod warp_op {
    pub const SHFL_UP: i32 = 0;
    pub const SHFL_DOWN: i32 = 1;
    pub const SHFL_BFLY: i32 = 2;
    pub const SHFL_IDX: i32 = 3;
    pub const VOTE_ALL: i32 = 4;
    pub const VOTE_ANY: i32 = 5;
    pub const VOTE_UNI: i32 = 6;
    pub const VOTE_BALLOT: i32 = 7;
    pub const WARP_SYNC: i32 = 8;
    pub const ACTIVE_MASK: i32 = 9;
    pub const REDUX_ADD: i32 = 10;
    pub const REDUX_MIN: i32 = 11;
    pub const REDUX_MAX: i32 = 12;
    pub const REDUX_UMIN: i32 = 13;
    pub const REDUX_UMAX: i32 = 14;
    pub const REDUX_AND: i32 = 15;
    pub const REDUX_OR: i32 = 16;
    pub const REDUX_XOR: i32 = 17;
    pub const MMA: i32 = 18;
    pub const LDMATRIX: i32 = 19;
    pub const GROUP_FENCE: i32 = 20;
    pub const GROUP_COMMIT: i32 = 21;
    pub const GROUP_WAIT: i32 = 22;
    pub const GROUP_MMA: i32 = 23;
}

/// Registers of [`Thread::fragment`].
pub const FRAGMENT: usize = 10;

/// Bytes of every kernel's parameter space.
pub const PARAM_BYTES: usize = 4096;

/// Runs one thread until it ends or waits; returns one of [`waits`] except `RUNS`.
pub type Run = unsafe extern "C" fn(*mut Thread) -> i32;

/// Description of a kernel, exported by its library as `kernel`.
#[repr(C)]
pub struct Kernel {
    /// Name of the PTX entry.
    pub name: *const c_char,
    /// Nonzero if it has barriers or warp operations.
    pub waits: i32,
    /// Nonzero if its blocks communicate: they must run one after the other.
    pub atomics: i32,
    /// Nonzero if it has warpgroup operations.
    pub groups: i32,
    /// Bytes of [`Thread`] and the registers after it.
    pub thread_bytes: u32,
    /// Local memory per thread, in bytes.
    pub local_bytes: u32,
    /// Bytes of static shared memory.
    pub shared_static: u32,
    /// Maximum threads per block (`.maxntid`), or 0.
    pub max_threads: u32,
    /// Number of memory instructions that need a [`Seen`].
    pub accesses: u32,
    /// Number of parameters.
    pub params: u32,
    /// Offset of each parameter.
    pub param_at: *const u32,
    /// Size of each parameter.
    pub param_bytes: *const u32,
    /// Entry point.
    pub run: Run,
}

// SAFETY: it describes code and constants of a library that is never unloaded.
unsafe impl Sync for Kernel {}
// SAFETY: as above.
unsafe impl Send for Kernel {}

/// Bounds of the allocation that a memory instruction last touched; all zero if unknown.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// First address.
    pub from: u64,
    /// One past the last address.
    pub to: u64,
}

/// Runtime callbacks passed to a kernel's library by `kernel_init`.
#[repr(C)]
pub struct Runtime {
    /// Checks an access to global (or generic) memory and records the bounds; does not return on a bad access.
    pub access: unsafe extern "C" fn(*mut Thread, u64, u32, i32, *const c_char, *mut Seen),
    /// Records a use of device memory, or a fence, for race detection.
    pub note: unsafe extern "C" fn(*mut Thread, u64, u32, i32, *const c_char),
    /// Stops the program with a message and the instruction. Does not return.
    pub stop: unsafe extern "C" fn(*const c_char, *const c_char) -> !,
}

/// One memory range used by a stand-in: `Use` of `kernel/standin.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Use {
    /// First address.
    pub at: *const c_void,
    /// Length in bytes.
    pub bytes: usize,
    /// Nonzero for a write.
    pub write: i32,
}
