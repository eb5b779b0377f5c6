// Integer, logic and shift instructions that are more than one operator of C.
#pragma once
#include "bits.h"

// shl, shr: amounts beyond the width count as the width.
INLINE uint64_t shift_left(uint64_t a, uint32_t by, uint32_t width) { return by >= width ? 0 : a << by; }
INLINE uint64_t shift_right(uint64_t a, uint32_t by, uint32_t width) { return by >= width ? 0 : a >> by; }
INLINE int64_t shift_right_signed(int64_t a, uint32_t by, uint32_t width) {
  return a >> (by >= width ? width - 1 : by);
}

// shf: 32 bits of the pair hi:lo.
INLINE uint32_t funnel_left(uint32_t lo, uint32_t hi, uint32_t by) {
  return (uint32_t)((((uint64_t)hi << 32 | lo) << by) >> 32);
}
INLINE uint32_t funnel_left_clamp(uint32_t lo, uint32_t hi, uint32_t by) {
  return by >= 32 ? lo : funnel_left(lo, hi, by);
}
INLINE uint32_t funnel_right(uint32_t lo, uint32_t hi, uint32_t by) {
  return (uint32_t)(((uint64_t)hi << 32 | lo) >> by);
}
INLINE uint32_t funnel_right_clamp(uint32_t lo, uint32_t hi, uint32_t by) {
  return by >= 32 ? hi : funnel_right(lo, hi, by);
}

// prmt without a mode: each nibble of the selector picks a byte, or with its high bit that byte's sign.
INLINE uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  uint64_t bytes = (uint64_t)b << 32 | a;
  uint32_t out = 0;
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t pick = selector >> 4 * i;
    uint32_t byte = (uint32_t)(bytes >> 8 * (pick & 7)) & 255;
    if (pick & 8) byte = byte & 128 ? 255 : 0;
    out |= byte << 8 * i;
  }
  return out;
}

// bfi, bfe: position and length are bytes; what lies outside of the word is not there.
INLINE uint64_t low_bits(uint32_t count) { return count >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << count) - 1; }
INLINE uint64_t bit_field_insert(uint64_t a, uint64_t b, uint32_t at, uint32_t length, uint32_t width) {
  at &= 255, length &= 255;
  if (at >= width) return b;
  uint64_t field = low_bits(length) << at & low_bits(width);
  return (b & ~field) | (a << at & field);
}
INLINE uint64_t bit_field_extract(uint64_t a, uint32_t at, uint32_t length, uint32_t width) {
  at &= 255, length &= 255;
  return at >= width ? 0 : a >> at & low_bits(length);
}
INLINE uint64_t bit_field_extract_signed(uint64_t a, uint32_t at, uint32_t length, uint32_t width) {
  at &= 255, length &= 255;
  if (length == 0) return 0;
  uint32_t top = at + length - 1 < width - 1 ? at + length - 1 : width - 1;
  uint64_t value = at >= width ? 0 : a >> at & low_bits(top - at + 1);
  uint32_t count = at >= width ? 0 : top - at + 1;
  return a >> top & 1 ? value | ~low_bits(count) : value;
}

INLINE uint64_t reverse_bits(uint64_t a, uint32_t width) {
  uint64_t out = 0;
  for (uint32_t i = 0; i < width; i++) out |= (a >> i & 1) << (width - 1 - i);
  return out;
}

// dp4a: the sum of four products of bytes, added to c.
#define DP4A(name, A, B) \
  INLINE uint32_t name(uint32_t a, uint32_t b, uint32_t c) { \
    for (int i = 0; i < 4; i++) c += (uint32_t)((int32_t)(A)(a >> 8 * i) * (int32_t)(B)(b >> 8 * i)); \
    return c; \
  }
DP4A(dp4a_s32_s32, int8_t, int8_t)
DP4A(dp4a_s32_u32, int8_t, uint8_t)
DP4A(dp4a_u32_s32, uint8_t, int8_t)
DP4A(dp4a_u32_u32, uint8_t, uint8_t)

// div, rem: the smallest number over -1 is itself on a card, and ends the program on x86. A zero divisor has
// no specified result in PTX and is refused before (see DIVISOR in memory.h).
INLINE int64_t divide(int64_t a, int64_t b) { return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b; }
INLINE int64_t remainder_of(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }
