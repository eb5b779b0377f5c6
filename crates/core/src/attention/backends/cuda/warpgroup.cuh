// Products of a warpgroup, four warps, by Hopper's `wgmma`: 64 rows of A times N columns of B, 16 of the inner dimension at a time,
// from tiles in shared memory.
//
// A tile has rows of up to 64 C numbers in C chunks of 64 numbers, 128 bytes; a chunk has all rows side by side, and begins at a
// multiple of 1,024 bytes. In row r of a chunk, the 16 bytes number c lie at c ^ (r % 8): the 128-byte swizzle, by which eight rows
// lie in different banks. (PTX ISA, "Shared Memory Matrix Layout".)

#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

constexpr int CHUNK = 64;           // numbers
constexpr int CHUNK_ROW = 128;      // bytes
constexpr int PATTERN = 1024;       // bytes of eight rows, after which the swizzle repeats

// Place of 16 bytes in a tile of ROWS rows.
template <int ROWS> __device__ uint32_t place_in_tile(int row, int unit) {
    return unit / 8 * (ROWS * CHUNK_ROW) + row * CHUNK_ROW + (unit % 8 ^ row % 8) * 16;
}

// Matrix descriptor for the 128-byte swizzle. `leading`: bytes between chunks, where the rows of a tile are the inner dimension;
// otherwise unused. Every offset is in units of 16 bytes, so that a multiple of these can be added to a descriptor.
__device__ uint64_t descriptor(uint32_t tile, uint32_t leading) {
    return uint64_t(1) << 62 | uint64_t(PATTERN / 16) << 32 | uint64_t(leading / 16) << 16 | (tile & 0x3FFFF) / 16;
}

// Before the first product after registers of its sums or factors were used.
__device__ void group_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the LEFT newest groups of products are done. Their sums must be pinned behind it.
template <int LEFT> __device__ void group_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

// Keeps the compiler from moving uses of registers over the operations before and after it.
template <int N> __device__ void pin(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}

template <int N> __device__ void pin(uint32_t (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(x[i])::"memory");
}

// Makes this thread's writes to shared memory visible to products after the next barrier: these read through another proxy.
__device__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// d (64, N) = a b or d + a b. A thread holds of d what it holds of 16 x 8 products of its warp's 16 rows.
template <typename T, int N> struct Product;

#define EIGHT(d, i)                                                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS_32(d) EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)
#define SUMS_64(d) SUMS_32(d), EIGHT(d, 32), EIGHT(d, 40), EIGHT(d, 48), EIGHT(d, 56)
#define SLOTS_32                                                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                                     \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SLOTS_64                                                                                                                 \
    SLOTS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                                \
             "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// `of_tiles`: a and b in shared memory, rows of A and columns of B being rows of tiles. `of_registers`: a in registers, and the rows
// of b's tile are the inner dimension. Operands after the sums are O0 and on.
#define PRODUCT(T, TYPE, N, SLOTS, SUMS, O0, O1, O2, O3, O4, O5)                                                                 \
    template <> struct Product<T, N> {                                                                                           \
        template <bool ADDS> static __device__ void of_tiles(float (&d)[N / 2], uint64_t a, uint64_t b) {                        \
            asm volatile("{ .reg .pred adds; setp.ne.b32 adds, " O2 ", 0; "                                                        \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" SLOTS "}, " O0 ", " O1             \
                         ", adds, 1, 1, 0, 0; }"                                                                                 \
                         : SUMS(d)                                                                                               \
                         : "l"(a), "l"(b), "n"(int(ADDS)));                                                                      \
        }                                                                                                                        \
        static __device__ void of_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {                             \
            asm volatile("{ .reg .pred adds; setp.ne.b32 adds, " O5 ", 0; "                                                        \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" SLOTS "}, {" O0 ", " O1 ", " O2    \
                         ", " O3 "}, " O4 ", adds, 1, 1, 1; }"                                                                   \
                         : SUMS(d)                                                                                               \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1));                                          \
        }                                                                                                                        \
    };

PRODUCT(__half, "f16", 64, SLOTS_32, SUMS_32, "%32", "%33", "%34", "%35", "%36", "%37")
PRODUCT(__half, "f16", 128, SLOTS_64, SUMS_64, "%64", "%65", "%66", "%67", "%68", "%69")
PRODUCT(__nv_bfloat16, "bf16", 64, SLOTS_32, SUMS_32, "%32", "%33", "%34", "%35", "%36", "%37")
PRODUCT(__nv_bfloat16, "bf16", 128, SLOTS_64, SUMS_64, "%64", "%65", "%66", "%67", "%68", "%69")

}  // namespace
