// cp.async: copies from global to shared memory that a thread begins and later waits for, in groups. A card may
// do such a copy at any time between the two. Here the place is unwritten (0xFF bytes) from the beginning on and
// gets its bytes at the wait, read then: whoever looks too early, or writes there, or changes the source, is
// found out.
#pragma once
#include "memory.h"

enum { MOST_COPIES = 512 };       // of a thread that it has not waited for

typedef struct Copy {
  uint64_t from;
  uint32_t to, group;
  uint16_t bytes, given;          // how many are written, and how many of them read; the rest is zero
} Copy;

typedef struct Copying {          // what a kernel with such copies has in the place of Thread
  Thread thread;
  uint32_t count, group;          // copies that are not done, oldest first; the group that is open
  Copy copies[MOST_COPIES];
} Copying;

INLINE void copies_begin(Thread *t) { ((Copying *)t)->count = ((Copying *)t)->group = 0; }

APART void copy(Thread *t, uint64_t to, uint64_t from, uint32_t bytes, uint32_t given, const char *at, Seen *seen) {
  Copying *own = (Copying *)t;
  if (given > bytes) stop("an asynchronous copy whose source is larger than what it writes", at);
  if (from & (bytes - 1)) {
    static char what[96];
    __builtin_snprintf(what, sizeof what, "misaligned asynchronous copy of %u bytes from %#lx", bytes,
                       (unsigned long)from);
    stop(what, at);
  }
  // Of a part of the bytes, the first and the last lie in one allocation if both lie in any.
  if (given == bytes) {
    global(t, from, bytes, READS, at, seen);
  } else if (given) {
    global(t, from, 1, READS, at, seen);
    global(t, from + given - 1, 1, READS, at, seen);
  }
  if (own->count == MOST_COPIES) stop("more asynchronous copies at once than the rehearsal keeps; raise MOST_COPIES in kernel/copy.h", at);
  __builtin_memset(shared(t, to, bytes, BEGINS_COPY, at), 0xFF, bytes);
  own->copies[own->count++] = (Copy){from, (uint32_t)to, own->group, (uint16_t)bytes, (uint16_t)given};
}

INLINE void copies_commit(Thread *t) { ((Copying *)t)->group++; }

// Does the copies of all groups but the `left` newest committed ones.
APART void copies_wait(Thread *t, uint32_t left, const char *at) {
  Copying *own = (Copying *)t;
  uint32_t done = 0;
  for (; done < own->count && own->copies[done].group + (uint64_t)left < own->group; done++) {
    Copy one = own->copies[done];
    uint8_t *to = shared(t, one.to, one.bytes, ENDS_COPY, at);
    if (one.given) note(t, one.from, one.given, READS, at);
    __builtin_memcpy(to, (const void *)one.from, one.given);
    __builtin_memset(to + one.given, 0, one.bytes - one.given);
  }
  own->count -= done;
  __builtin_memmove(own->copies, own->copies + done, own->count * sizeof(Copy));
}

// Does them all, committed or not.
INLINE void copies_wait_all(Thread *t, const char *at) {
  copies_commit(t);
  copies_wait(t, 0, at);
}
