// Memory instructions: every access is checked. What is wrong is said by the runtime, or here where it can be
// seen.
#pragma once
#include "bits.h"
#include "abi.h"
#include "runtime.h"
#include "race.h"

// Notes a use of global memory where that is asked for. Only blocks with atomic operations or fences can order their
// uses, and only the translations of such kernels define ORDERS.
INLINE void note(Thread *t, uint64_t address, uint32_t bytes, int use, const char *at) {
#ifdef ORDERS
  if (RARELY(t->block->uses)) runtime.note(t, address, bytes, use, at);
#endif
}

// The module's own variables, which lie in this library: whether an access falls into one, whose bounds are
// then noted. Each kernel is a library of its own, so a variable that a kernel wrote would not change for the
// others: writing is refused.
static int own_variable(uint64_t address, uint32_t bytes, Seen *seen);
INLINE int is_in(uint64_t address, uint32_t bytes, const uint8_t *variable, uint64_t size, Seen *seen) {
  uint64_t at = address - (uint64_t)variable;
  if (at >= size || bytes > size - at) return 0;
  *seen = (Seen){(uint64_t)variable, (uint64_t)variable + size};
  return 1;
}

APART __attribute__((cold)) void ask(Thread *t, uint64_t address, uint32_t bytes, int write, const char *at,
                                     Seen *seen) {
  if (address & (bytes - 1)) {
    static char what[96];
    __builtin_snprintf(what, sizeof what, "misaligned access of %u bytes at %#lx", bytes,
                       (unsigned long)address);
    stop(what, at);
  }
  Seen own = {0, 0};
  if (own_variable(address, bytes, &own)) {
    if (write) stop("a kernel writes a variable of its module, and kernels do not share these here", at);
    *seen = own;
    return;
  }
  runtime.access(t, address, bytes, write, at, seen);
}

// Alignment comes first: an aligned address cannot wrap around by adding bytes - 1.
INLINE void *global(Thread *t, uint64_t address, uint32_t bytes, int use, const char *at, Seen *seen) {
  if (RARELY((address & (bytes - 1)) || address < seen->from || address + (bytes - 1) >= seen->to))
    ask(t, address, bytes, (use & 7) != READS, at, seen);
  note(t, address, bytes, use, at);
  return (void *)address;
}

APART __attribute__((cold, noreturn)) void outside(const char *space, uint64_t at_byte, uint32_t bytes,
                                                   uint64_t size, const char *at) {
  static char what[128];
  __builtin_snprintf(what, sizeof what, "%s memory: %u bytes at byte %lu of %lu, %s", space, bytes,
                     (unsigned long)at_byte, (unsigned long)size,
                     at_byte & (bytes - 1) ? "misaligned" : "out of bounds");
  stop(what, at);
}

#define WINDOW(name, base, size) \
  INLINE void *name(const Thread *t, uint64_t address, uint32_t bytes, const char *at) { \
    if (RARELY((address & (bytes - 1)) || address + (bytes - 1) >= (size))) \
      outside(#name, address, bytes, size, at); \
    return (base) + address; \
  }
enum { THREAD_BITS = 11 };
APART void wrote(const Thread *t, uint64_t from, uint32_t bytes) {
  for (uint64_t unit = from / 16; unit <= (from + bytes - 1) / 16; unit++)
    t->block->generic[unit] = t->fences << THREAD_BITS | (t->linear + 1);
}
INLINE void *shared(const Thread *t, uint64_t address, uint32_t bytes, int use, const char *at) {
  if (RARELY((address & (bytes - 1)) || address + (bytes - 1) >= t->block->shared_bytes))
    outside("shared", address, bytes, t->block->shared_bytes, at);
  if (RARELY(t->block->traces)) trace(t, address, bytes, use, at);
#ifdef GROUPS
  if (use != READS) wrote(t, address, bytes);
#endif
  return t->block->shared + address;
}
WINDOW(local, t->local, t->local_bytes)
WINDOW(param, t->block->params, PARAM_BYTES)

// A divisor that is not zero.
#define DIVISOR(type, value, at) \
  ({ type divisor = (value); if (RARELY(divisor == 0)) stop("integer division by zero", at); divisor; })

// __assertfail, what a failed assert() of CUDA C++ calls.
APART __attribute__((cold, noreturn)) void assert_fail(const uint8_t *message, const uint8_t *file,
                                                       const uint8_t *line, const uint8_t *function,
                                                       const char *at) {
  static char what[512];
  __builtin_snprintf(what, sizeof what, "assertion failed: %s (%s:%u, %s)", *(const char *const *)message,
                     *(const char *const *)file, *(const uint32_t *)line, *(const char *const *)function);
  stop(what, at);
}
