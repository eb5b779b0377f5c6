// Floating-point instructions that are more than one operator of C, and conversions to integers.
#pragma once
#include "bits.h"

// .ftz: a subnormal number counts as a zero of its sign.
INLINE float flush(float x) { return bits32(x) & 0x7F800000 ? x : f32(bits32(x) & 0x80000000); }
// .sat: to 0 and 1; NaN becomes 0.
INLINE float saturate(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
INLINE double saturate_f64(double x) { return x > 0 ? x < 1 ? x : 1 : 0; }
// .relu: to 0; NaN stays.
INLINE float relu(float x) { return x != x || x > 0 ? x : 0; }

// min, max: a number wins against NaN, and -0 lies below +0. With .NaN, NaN wins.
INLINE float min_f32(float a, float b) {
  if (a != a) return b != b ? f32(0x7FFFFFFF) : b;
  return b != b || a < b || (a == b && bits32(a) >> 31) ? a : b;
}
INLINE float max_f32(float a, float b) {
  if (a != a) return b != b ? f32(0x7FFFFFFF) : b;
  return b != b || a > b || (a == b && !(bits32(a) >> 31)) ? a : b;
}
INLINE double min_f64(double a, double b) {
  if (a != a) return b;
  return b != b || a < b || (a == b && bits64(a) >> 63) ? a : b;
}
INLINE double max_f64(double a, double b) {
  if (a != a) return b;
  return b != b || a > b || (a == b && !(bits64(a) >> 63)) ? a : b;
}
INLINE float min_nan_f32(float a, float b) { return a != a || b != b ? f32(0x7FFFFFFF) : min_f32(a, b); }
INLINE float max_nan_f32(float a, float b) { return a != a || b != b ? f32(0x7FFFFFFF) : max_f32(a, b); }

// rcp.approx.ftz.f64 sees the upper word of its operand and gives the upper word of its result.
INLINE double rcp_approx_f64(double x) {
  uint64_t upper = bits64(x) & 0xFFFFFFFF00000000u;
  if (!(upper & 0x7FF0000000000000u)) upper &= 0x8000000000000000u;
  double result = 1 / f64(upper);
  if (result != result) return result;
  upper = bits64(result) & 0xFFFFFFFF00000000u;
  return f64(upper & 0x7FF0000000000000u ? upper : upper & 0x8000000000000000u);
}
INLINE double rsqrt_approx_f64(double x) {
  uint64_t upper = bits64(x) & 0xFFFFFFFF00000000u;
  if (!(upper & 0x7FF0000000000000u)) upper &= 0x8000000000000000u;
  double result = 1 / __builtin_sqrt(f64(upper));
  return result != result ? result : f64(bits64(result) & 0xFFFFFFFF00000000u);
}

// cvt to an integer of `width` bits, of a number that is whole already: out of range is the nearest end, and
// NaN is what the manual says for the types (0, or the highest bit alone).
INLINE int64_t to_signed(double x, int width, int64_t nan) {
  double end = (double)((uint64_t)1 << (width - 1));
  if (x != x) return nan;
  if (x < -end) return -(int64_t)((uint64_t)1 << (width - 2)) * 2;
  if (x >= end) return (int64_t)(((uint64_t)1 << (width - 1)) - 1);
  return (int64_t)x;
}
INLINE uint64_t to_unsigned(double x, int width, uint64_t nan) {
  if (x != x) return nan;
  if (x <= 0) return 0;
  if (x >= 2.0 * (double)((uint64_t)1 << (width - 1))) return ~(uint64_t)0 >> (64 - width);
  return (uint64_t)x;
}
