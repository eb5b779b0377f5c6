//! What a translated kernel and the runtime tell each other: the mirror of `kernel/abi.h`. Change both.
//!
//! The translator's output is compiled against the header; [`crate::schedule`] and [`crate::runtime`] use
//! these types. The field order and the numbers of the enums are the contract, so nothing here may be
//! reordered.

use std::ffi::{c_char, c_void};

/// One block of a launch.
#[repr(C)]
pub struct Block {
    /// The kernel's parameters as PTX lays them out, [`PARAM_BYTES`] long.
    pub params: *mut u8,
    /// Static shared memory, then dynamic.
    pub shared: *mut u8,
    /// Bytes at `shared`.
    pub shared_bytes: u32,
    /// Of these, bytes of static shared memory.
    pub shared_static: u32,
    /// Threads of a block, blocks of the grid, and which block this is.
    pub ntid: [u32; 3],
    /// Blocks of the grid.
    pub nctaid: [u32; 3],
    /// Which block this is.
    pub ctaid: [u32; 3],
    /// [`Kernel::accesses`] of them, one a memory instruction. Each worker thread has its own array and makes
    /// it all zero when a launch begins.
    pub seen: *mut Seen,
    /// One a byte of shared memory, or null: races are not looked for.
    pub traces: *mut Trace,
    /// How many barriers the block has passed, from 1 on.
    pub barriers: u32,
    /// Where uses of global memory are noted, or null: they are not.
    pub uses: *mut c_void,
}

/// The last uses of a byte of shared memory: see `kernel/race.h`. Zero: none.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trace {
    /// The last write.
    pub written: u32,
    /// The last read.
    pub read: u32,
}

/// One thread; the kernel's own registers follow it in memory.
#[repr(C)]
pub struct Thread {
    /// The thread's block.
    pub block: *mut Block,
    /// Local memory, or null.
    pub local: *mut u8,
    /// Bytes at `local`.
    pub local_bytes: u32,
    /// The thread's place in its block.
    pub tid: [u32; 3],
    /// The thread's number in its block.
    pub linear: u32,
    /// Where the kernel goes on; 0 is its beginning.
    pub resume: i32,
    /// One of [`waits`].
    pub waits: i32,
    /// What a warp operation is given: one of [`warp_op`] ...
    pub op: i32,
    /// ... the lanes that take part ...
    pub mask: u32,
    /// ... this lane's value ...
    pub value: u32,
    /// ... a shuffle's lane or distance ...
    pub lane: u32,
    /// ... a shuffle's clamp and segment mask, packed as PTX packs them.
    pub clamp: u32,
    /// What it gives back.
    pub result: u32,
    /// A vote's or a shuffle's predicate.
    pub predicate: i32,
    /// The instruction, for messages.
    pub at: *const c_char,
    /// This lane's registers of an operation on matrices: what it is given, then what it gives back.
    pub fragment: [u32; FRAGMENT],
}

/// What is done to memory, `enum Uses`, of those that are told apart in global memory.
pub mod uses {
    /// It is read.
    pub const READS: i32 = 0;
    /// It is written.
    pub const WRITES: i32 = 1;
    /// Both at once, as atomic operations do.
    pub const UPDATES: i32 = 2;
    /// Nothing: earlier and later uses are ordered.
    pub const FENCES: i32 = 5;
    /// The bits of the above.
    pub const KINDS: i32 = 7;
}

/// Beside a use, what other blocks may rely on: `enum Orders`.
pub mod orders {
    /// Other blocks may use the place at the same time.
    pub const STRONG: i32 = 8;
    /// What it reads is acted on.
    pub const OBSERVES: i32 = 16;
    /// Later uses come after it.
    pub const ACQUIRES: i32 = 32;
    /// Earlier uses come before it.
    pub const RELEASES: i32 = 64;
}

/// What a thread waits for: `enum Waits`.
pub mod waits {
    /// It can go on.
    pub const RUNS: i32 = 0;
    /// It waits for its block.
    pub const AT_BARRIER: i32 = 1;
    /// It waits for the other lanes of its warp.
    pub const AT_WARP_OP: i32 = 2;
    /// It has ended.
    pub const DONE: i32 = 3;
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
}

/// Registers of [`Thread::fragment`].
pub const FRAGMENT: usize = 10;

/// Bytes of every kernel's parameter space.
pub const PARAM_BYTES: usize = 4096;

/// Runs one thread until it ends or waits; returns one of [`waits`] other than `RUNS`.
pub type Run = unsafe extern "C" fn(*mut Thread) -> i32;

/// What a translated kernel's library exports under the name `kernel`.
#[repr(C)]
pub struct Kernel {
    /// The PTX entry.
    pub name: *const c_char,
    /// Whether it has barriers or warp operations.
    pub waits: i32,
    /// Whether its blocks tell each other something: they must not run side by side.
    pub atomics: i32,
    /// Bytes of [`Thread`] and the registers behind it.
    pub thread_bytes: u32,
    /// Bytes of a thread's local memory.
    pub local_bytes: u32,
    /// Bytes of static shared memory.
    pub shared_static: u32,
    /// Most threads of a block that it was compiled for, or 0.
    pub max_threads: u32,
    /// How many memory instructions need a [`Seen`].
    pub accesses: u32,
    /// How many parameters, with the place and the size of each.
    pub params: u32,
    /// Each parameter's place.
    pub param_at: *const u32,
    /// Each parameter's size.
    pub param_bytes: *const u32,
    /// Its code.
    pub run: Run,
}

// SAFETY: it describes code and constants of a loaded library that is never unloaded.
unsafe impl Sync for Kernel {}
// SAFETY: as above.
unsafe impl Send for Kernel {}

/// The bounds of the allocation that a memory instruction last touched; all zero where nothing is known yet.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// Its first address.
    pub from: u64,
    /// One past its last address.
    pub to: u64,
}

/// What the runtime provides to a kernel's library, through its `kernel_init`.
#[repr(C)]
pub struct Runtime {
    /// Checks an access to global (or generic) memory and notes the bounds; does not return if the access is
    /// wrong.
    pub access: unsafe extern "C" fn(*mut Thread, u64, u32, i32, *const c_char, *mut Seen),
    /// Notes a use of device memory, or a fence, for the search for races.
    pub note: unsafe extern "C" fn(*mut Thread, u64, u32, i32, *const c_char),
    /// Stops the program: what is wrong, and the instruction. Does not return.
    pub stop: unsafe extern "C" fn(*const c_char, *const c_char) -> !,
}

/// One range of memory that a stand-in's work uses: `Use` of `kernel/standin.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Use {
    /// Where it begins.
    pub at: *const c_void,
    /// Its bytes.
    pub bytes: usize,
    /// Whether it is written; else it is only read.
    pub write: i32,
}
