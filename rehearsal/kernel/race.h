// Races in shared memory: two warps use a byte, one of them writes it, and no barrier of the block comes between.
// Lanes of one warp are not told apart.
#pragma once
#include "bits.h"
#include "abi.h"
#include "runtime.h"

// Beside the warp, in the low eight bits of a trace.
enum { WARP_OF = 31, ATOMIC = 64, COPYING = 128, SEVERAL_WARPS = 128 };

APART __attribute__((cold, noreturn)) void race(const Thread *t, uint64_t byte, int use, const char *other, uint32_t warp,
                                                const char *at) {
  static char what[192];
  char by[16] = "several warps";
  if (warp <= WARP_OF) __builtin_snprintf(by, sizeof by, "warp %u", warp);
  __builtin_snprintf(what, sizeof what, "a race: warp %u %s byte %lu of shared memory, which %s %s", t->linear >> 5,
                     use == READS ? "reads" : "writes", (unsigned long)byte, by, other);
  stop(what, at);
}

APART void trace(const Thread *t, uint64_t from, uint32_t bytes, int use, const char *at) {
  const uint32_t warp = t->linear >> 5, now = t->block->barriers << 8;
  for (uint64_t byte = from; byte < from + bytes; byte++) {
    Trace *trace = t->block->traces + byte;
    const uint32_t written = trace->written, read = trace->read;
    const int reads_now = (read & ~255u) == now, others = read & SEVERAL_WARPS || (read & WARP_OF) != warp;
    if (written & COPYING && use != ENDS_COPY)
      race(t, byte, use, "has an asynchronous copy write until it waits for it", written & WARP_OF, at);
    if ((written & ~255u) == now && (written & WARP_OF) != warp && !(use == UPDATES && written & ATOMIC))
      race(t, byte, use, "writes, and no barrier comes between", written & WARP_OF, at);
    if (use == READS) {
      trace->read = now | (reads_now && others ? SEVERAL_WARPS : 0) | warp;
      continue;
    }
    if (reads_now && others)
      race(t, byte, use, "reads, and no barrier comes between", read & SEVERAL_WARPS ? ~0u : read & WARP_OF, at);
    trace->written = now | (use == UPDATES ? ATOMIC : use == BEGINS_COPY ? COPYING : 0) | warp;
  }
}
