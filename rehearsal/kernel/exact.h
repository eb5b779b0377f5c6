// Directed rounding, and rounding from an exact result: what C's nearest-even arithmetic lacks.
#pragma once
#include "bits.h"

// An exact value: the nearest double, and what that lacks.
typedef struct Exact { double sum, rest; } Exact;

typedef enum Rounding { NEAREST, ZERO, DOWN, UP } Rounding;

// The exact sum of two doubles (Knuth's two-sum).
INLINE Exact exact_add(double a, double b) {
  double sum = a + b, of_b = sum - a, of_a = sum - of_b;
  return (Exact){sum, (a - of_a) + (b - of_b)};
}
// a * b + c of numbers no wider than f32, whose product is exact in a double.
INLINE Exact exact_fma(double a, double b, double c) { return exact_add(a * b, c); }
INLINE Exact exact_i64(int64_t x) { return exact_add((double)(x >> 32) * 0x1p32, (double)(uint32_t)x); }
INLINE Exact exact_u64(uint64_t x) { return exact_add((double)(x >> 32) * 0x1p32, (double)(uint32_t)x); }
INLINE Exact exact_f64(double x) { return (Exact){x, 0}; }

// Whether an exact value lies above (1), below (-1) or at (0) a rounding of its sum.
INLINE int above(Exact x, double rounded) {
  double gap = x.sum - rounded;
  if (gap == 0) gap = x.rest;
  return gap > 0 ? 1 : gap < 0 ? -1 : 0;
}
// Whether the neighbour that lies `side` of a rounding is the right result in a mode.
INLINE int steps(int side, int negative, Rounding mode) {
  int inwards = negative ? side > 0 : side < 0;
  return mode == UP ? side > 0 : mode == DOWN ? side < 0 : mode == ZERO && inwards;
}
// The next number up (1) or down (-1).
INLINE uint64_t neighbour(uint64_t bits, int side, uint64_t sign) {
  if (!(bits & ~sign)) return side > 0 ? 1 : sign | 1;
  return (bits & sign ? -side : side) > 0 ? bits + 1 : bits - 1;
}

APART float round_f32(Exact x, Rounding mode) {
  float nearest = (float)x.sum;
  if (x.sum != x.sum || x.sum - x.sum != 0) return nearest; // NaN, infinite
  int side = above(x, nearest), negative = __builtin_signbit(nearest) != 0;
  if (!steps(side, negative, mode)) return nearest;
  return f32((uint32_t)neighbour(bits32(nearest), side, 0x80000000u));
}

// To odd: of the two neighbours of a result that is not exact, the one whose last bit is set. A second
// rounding, to at least two bits fewer, is then as good as one rounding of the exact value.
INLINE float round_odd(Exact x) {
  float nearest = (float)x.sum;
  if (x.sum != x.sum || x.sum - x.sum != 0) return nearest;
  int side = above(x, nearest);
  if (!side || bits32(nearest) & 1) return nearest;
  return f32((uint32_t)neighbour(bits32(nearest), side, 0x80000000u));
}

// A sum that is exactly zero is -0 when rounded down, unless both parts are +0.
INLINE float round_sum(double a, double b, Rounding mode) {
  Exact x = exact_add(a, b);
  if (x.sum == 0 && mode == DOWN) return __builtin_signbit(a) || __builtin_signbit(b) ? -0.0f : 0.0f;
  return round_f32(x, mode);
}
APART float add_f32(float a, float b, Rounding mode) { return round_sum(a, b, mode); }
APART float mul_f32(float a, float b, Rounding mode) { return round_f32(exact_f64((double)a * b), mode); }
APART float fma_f32(float a, float b, float c, Rounding mode) { return round_sum((double)a * b, c, mode); }

APART double add_f64(double a, double b, Rounding mode) {
  Exact x = exact_add(a, b);
  if (a - a != 0 || b - b != 0) return x.sum; // NaN, infinite
  if (x.sum == 0) return mode == DOWN && (__builtin_signbit(a) || __builtin_signbit(b)) ? -0.0 : x.sum;
  int negative = __builtin_signbit(x.sum) != 0;
  // After an overflow the exact sum lies this side of infinity.
  int side = x.sum - x.sum != 0 ? (negative ? 1 : -1) : above(x, x.sum);
  if (!steps(side, negative, mode)) return x.sum;
  return f64(neighbour(bits64(x.sum), side, (uint64_t)1 << 63));
}
