// For stand-ins written in C: a library whose own kernels cannot run on the rehearsal (they are binaries, or need tensor
// cores) is linked in a version whose functions hand plain C code to this call instead of launching a kernel.
#pragma once
#include <stddef.h>

typedef struct Use {  // a range of memory that the work reads or writes
  const void *at;
  size_t bytes;
  int write;          // 0: only read
} Use;

#ifdef __cplusplus
extern "C"
#endif
// Does `work(data)` as a kernel called `name` on `stream` of the current context (0: its legacy stream): the ranges are checked
// against live allocations of its device and ordered with other streams, the launch is counted, and the work runs when the
// stream comes to it. `data_bytes` bytes at `data` are copied first; `uses` and `name` need not outlive the call. Gives a
// `CUresult`, 0 for success. The work must not call CUDA.
int rehearsal_enqueue(void *stream, void (*work)(void *), void *data, size_t data_bytes, const Use *uses, size_t n,
                      const char *name);
