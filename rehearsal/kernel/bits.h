// Values seen as bits and bits seen as values. No libc header is included anywhere: it would be most of what
// the compiler reads for a small kernel.
#pragma once
#include <stdint.h>
#define INLINE static inline __attribute__((always_inline, unused))
#define APART static __attribute__((noinline, unused))
#define RARELY(condition) __builtin_expect(!!(condition), 0)

INLINE float f32(uint32_t bits) { float x; __builtin_memcpy(&x, &bits, 4); return x; }
INLINE uint32_t bits32(float x) { uint32_t bits; __builtin_memcpy(&bits, &x, 4); return bits; }
INLINE double f64(uint64_t bits) { double x; __builtin_memcpy(&x, &bits, 8); return x; }
INLINE uint64_t bits64(double x) { uint64_t bits; __builtin_memcpy(&bits, &x, 8); return bits; }
