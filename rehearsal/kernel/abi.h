// What a translated kernel and the runtime that schedules it tell each other. Mirrored by src/abi.rs: change
// both.
//
// A kernel is one C function that runs one thread until that thread ends or has to wait for others. A kernel
// without barriers and warp operations runs each thread in one go and keeps its registers in C locals; one
// that has them keeps its registers behind `Thread`, returns why it waits, and is called again to go on at
// `resume`.
#pragma once
#include <stdint.h>

// The bounds of the allocation that a memory instruction last touched, so that the runtime is asked only when
// an access leaves it: `from` is its first byte, `to` is one past its last. All zero: nothing is known yet.
typedef struct Seen { uint64_t from, to; } Seen;

// The last uses of a byte of shared memory, where races are looked for: the count of barriers before the use, then
// eight bits for the warp and for what `kernel/race.h` notes. Zero: none.
typedef struct Trace { uint32_t written, read; } Trace;

typedef struct Block {            // one block of a launch
  uint8_t *params;                // the kernel's parameters as PTX lays them out, PARAM_BYTES long
  uint8_t *shared;                // static shared memory, then dynamic; aligned to 128 bytes
  uint32_t shared_bytes, shared_static;
  uint32_t ntid[3], nctaid[3], ctaid[3];
  // `Kernel.accesses` of them, one a memory instruction. Each worker thread has its own array and makes it
  // all zero when a launch begins: no races, nothing stale.
  Seen *seen;
  Trace *traces;                  // one a byte of shared memory, or null: races are not looked for
  uint32_t barriers;              // how many the block has passed, from 1 on
  void *uses;                     // where uses of global memory are noted, or null: they are not
  uint32_t *generic;              // see kernel/group.h; null in kernels without warpgroup operations
} Block;

// What is done to memory. A copy (`cp.async`) writes at any time from its beginning to its wait.
enum Uses { READS, WRITES, UPDATES, BEGINS_COPY, ENDS_COPY, FENCES };

// Beside the use, of global memory and of fences: whether other blocks may use the place at the same time (a strong
// operation of the scope of the card or the system), whether what it reads is acted on (`red` does not tell), and what
// it orders.
enum Orders { STRONG = 8, OBSERVES = 16, ACQUIRES = 32, RELEASES = 64 };

enum { FRAGMENT = 10 };           // mma: four registers of A, two of B, four of C

typedef struct Thread {           // followed by the kernel's own registers
  Block *block;
  uint8_t *local;                 // local memory, or null; aligned to 16 bytes
  uint32_t local_bytes;
  uint32_t tid[3];
  uint32_t linear;                // the thread's number in its block
  int32_t resume;                 // where to go on
  int32_t waits;                  // one of Waits
  // What a warp operation is given, and what it gives back.
  int32_t op;                     // one of WarpOp
  uint32_t mask, value, lane, clamp, result;
  int32_t predicate;
  const char *at;                 // the instruction, for messages
  // This lane's registers of an operation on matrices: what it is given, then what it gives back.
  uint32_t fragment[FRAGMENT];
  uint32_t *sums;                 // wgmma: the registers of D
  uint32_t fences;                // its `fence.proxy.async` so far
} Thread;

enum Waits { RUNS = 0, AT_BARRIER = 1, AT_WARP_OP = 2, DONE = 3, AT_GROUP_OP = 4 };

enum WarpOp {
  SHFL_UP, SHFL_DOWN, SHFL_BFLY, SHFL_IDX,
  VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT,
  WARP_SYNC, ACTIVE_MASK,
  REDUX_ADD, REDUX_MIN, REDUX_MAX, REDUX_UMIN, REDUX_UMAX, REDUX_AND, REDUX_OR, REDUX_XOR,
  // `.aligned`: all lanes take part, at one instruction.
  MMA,      // `lane`: whether the factors are bf16; `clamp`: their inner dimension
  LDMATRIX, // `value`: a row's place in shared memory; `lane`: whether transposed; `clamp`: how many matrices
  // Of a warpgroup, which are four warps: all its threads take part, at one instruction (AT_GROUP_OP).
  GROUP_FENCE, GROUP_COMMIT,
  GROUP_WAIT, // `value`: groups that may be left
  // `lane`: 1 for factors of bf16; `clamp`: columns of B; `value`: of GroupFlags. Registers of A are 0 to 3 of the
  // fragment or its descriptor 4 and 5, B's descriptor 6 and 7.
  GROUP_MMA,
};

enum GroupFlags { ADDS = 1, NEGATES_A = 2, NEGATES_B = 4, TRANSPOSES_A = 8, TRANSPOSES_B = 16, A_IN_REGISTERS = 32 };

enum { PARAM_BYTES = 4096 };

typedef struct Kernel {           // every translated kernel's library exports one, named `kernel`
  const char *name;
  int32_t waits;                  // whether it has barriers or warp operations
  int32_t atomics;                // whether its blocks tell each other something: they must not run side by side
  int32_t groups;                 // 1: it has warpgroup operations
  uint32_t thread_bytes;          // of Thread and the registers behind it
  uint32_t local_bytes, shared_static;
  uint32_t max_threads;           // of a block, or 0
  uint32_t accesses;              // memory instructions that need a `Seen`
  uint32_t params;                // how many, with the place and the size of each
  const uint32_t *param_at, *param_bytes;
  int32_t (*run)(Thread *);       // one of Waits other than RUNS
} Kernel;

// What the runtime provides. Given to the kernel's library before its first run, through a pointer: the
// library needs no symbol of the program that loads it.
typedef struct Runtime {
  // Checks an access to global (or generic) memory and notes the bounds; does not return if the access is
  // wrong.
  void (*access)(Thread *, uint64_t address, uint32_t bytes, int32_t write, const char *at, Seen *);
  // Notes a use of device memory, or a fence, for the search for races; only where `Block.uses` is set.
  void (*note)(Thread *, uint64_t address, uint32_t bytes, int32_t use, const char *at);
  // Stops the program: what is wrong, and the instruction. Does not return.
  void (*stop)(const char *what, const char *at);
} Runtime;

// Every translated kernel's library exports, beside `kernel`: void kernel_init(const Runtime *);
