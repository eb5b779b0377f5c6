// Warpgroup operations (wgmma). Their factors in shared memory are read by the async proxy, which sees what threads wrote
// there only after a `fence.proxy.async`. For each 16 bytes of shared memory the block keeps the last thread that wrote there,
// plus 1, and how many such fences it had done (from bit THREAD_BITS on); the runtime looks there when a product begins.
#pragma once
#include "copy.h"

enum { MOST_SUMS = 128 };         // registers of D

typedef struct Multiplying {      // takes the place of Thread in a kernel with such operations
  Copying copying;
  uint32_t sums[MOST_SUMS];
} Multiplying;

INLINE uint32_t *sums_of(Thread *t) { return ((Multiplying *)t)->sums; }
