// f16 and bf16. Both are computed in wider types, from results that are exact or rounded to odd, and rounded
// once.
#pragma once
#include "exact.h"

INLINE float f16(uint16_t bits) { _Float16 x; __builtin_memcpy(&x, &bits, 2); return (float)x; }
INLINE float bf16(uint16_t bits) { return f32((uint32_t)bits << 16); }

INLINE uint16_t to_f16(float x) { // NaN is 0x7FFF
  if (x != x) return 0x7FFF;
  _Float16 half = (_Float16)x;
  uint16_t bits;
  __builtin_memcpy(&bits, &half, 2);
  return bits;
}
INLINE uint16_t to_bf16(float x) {
  uint32_t bits = bits32(x);
  return x != x ? 0x7FFF : (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
INLINE uint16_t exact_to_f16(Exact x) { return to_f16(round_odd(x)); }
INLINE uint16_t exact_to_bf16(Exact x) { return to_bf16(round_odd(x)); }

// The product of two halves is exact in a double, and the sum with a third exact as a pair.
APART uint16_t fma_f16_exactly(float a, float b, float c) { return exact_to_f16(exact_fma(a, b, c)); }
APART uint16_t fma_bf16_exactly(float a, float b, float c) { return exact_to_bf16(exact_fma(a, b, c)); }

// Rounding an f32 again is wrong only where it lies halfway between two halves. Below its normal numbers f16
// has other halfways, so these go the long way too.
INLINE uint16_t fma_f16(float a, float b, float c) {
  float sum = __builtin_fmaf(a, b, c);
  int is_halfway = (bits32(sum) & 0x1FFF) == 0x1000, is_small = __builtin_fabsf(sum) < 0x1p-14f && sum != 0;
  return RARELY(is_halfway || is_small) ? fma_f16_exactly(a, b, c) : to_f16(sum);
}
INLINE uint16_t fma_bf16(float a, float b, float c) {
  float sum = __builtin_fmaf(a, b, c);
  return RARELY((bits32(sum) & 0xFFFF) == 0x8000) ? fma_bf16_exactly(a, b, c) : to_bf16(sum);
}
