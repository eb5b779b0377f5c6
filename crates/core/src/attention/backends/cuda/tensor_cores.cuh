// Shared by the tensor-core kernels: copies to shared memory, fragments of matrices, products, and scores as powers of two.

#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

constexpr float LOG2E = 1.4426950408889634f;

// Online softmax of a row: the greatest score so far, in powers of two, and the sum of 2^(score - max).
struct Ends {
    float max, sum;
};

// Turns products into scores, and says which keys a query sees.
struct Rule {
    float unit;         // what a score is multiplied by to be a power of two
    float inner, cap;   // with a soft cap: a product x counts as cap * tanh(y) with 2^(x * inner) = e^2y before that; no cap is 0
    int window;         // 0 is none

    __device__ int first_seen(int position) const {
        return window && position >= window ? position + 1 - window : 0;
    }
};

__device__ uint32_t shared_address(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Copies `bytes` of a row's 16 or 8 to shared memory in the background; the rest becomes zero.
__device__ void copy16(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ void copy8(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ void copies_wait() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Four 8 x 8 matrices, a row of them at each lane's address.
__device__ void load_matrices(uint32_t (&to)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}
__device__ void load_transposed(uint32_t (&to)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// `c` (16, 8) += `a` (16, 16) times two registers of `b` (16, 8).
template <typename T> __device__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <> __device__ void multiply<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ void multiply<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers rounded into one register, the first in the low half.
template <typename T> __device__ uint32_t pair(float low, float high);
template <> __device__ uint32_t pair<__half>(float low, float high) {
    __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&both);
}
template <> __device__ uint32_t pair<__nv_bfloat16>(float low, float high) {
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&both);
}

__device__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// tanh(y) is 1 - 2 / (1 + e^2y): off by some roundings of 1, which for products of half precision is little.
__device__ float capped(float x, const Rule &rule) {
    return rule.cap - __fdividef(2 * rule.cap, 1.0f + power(x * rule.inner));
}

// Sum and maximum over the four lanes that share rows of a fragment.
__device__ float sum_of_four(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ float max_of_four(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Rows of up to D numbers in shared memory, 16 bytes longer than they need be, so that the eight rows of a matrix lie in different
// banks. THREADS of a block, or 0 where launches differ in that.
template <typename T, int D, int THREADS> struct Rows {
    static constexpr int PITCH = D + 8;

    static __device__ int threads() { return THREADS ? THREADS : blockDim.x; }

    // Rows `from(row)`, of which a null one is zeros, to shared memory; `d` numbers each, and zeros up to D. WIDTH at a time.
    template <int WIDTH, typename From>
    static __device__ void fetch_by(uint32_t to, int rows, int d, const T *any, From from) {
        // Heads whose rows are no multiples of 16 bytes are rare, and registers short.
        constexpr int CHUNKS = D / WIDTH, UNROLL = WIDTH == 8 ? 4 : 1;
        auto copy = [&](int row, int column) {
            const T *at = column < d ? from(row) : nullptr;
            uint32_t place = to + (row * PITCH + column) * 2;
            if (WIDTH == 8)
                copy16(place, at ? at + column : any, at ? 16 : 0);
            else
                copy8(place, at ? at + column : any, at ? 8 : 0);
        };
        if (32 % CHUNKS == 0) {
            // A thread copies a column of its own.
            int column = threadIdx.x % CHUNKS * WIDTH, begin = threadIdx.x / CHUNKS, step = threads() / CHUNKS;
            if (THREADS && rows % step == 0) {
                // Every thread copies the same number of rows, so the loop needs no bound check.
#pragma unroll 4
                for (int first = 0; first < rows; first += step) copy(first + begin, column);
            } else {
#pragma unroll UNROLL
                for (int row = begin; row < rows; row += step) copy(row, column);
            }
        } else {
#pragma unroll UNROLL
            for (int i = threadIdx.x; i < rows * CHUNKS; i += threads()) copy(i / CHUNKS, i % CHUNKS * WIDTH);
        }
    }

    template <typename From> static __device__ void fetch(uint32_t to, int rows, int d, bool wide, const T *any, From from) {
        if (wide)
            fetch_by<8>(to, rows, d, any, from);
        else
            fetch_by<4>(to, rows, d, any, from);
    }
};

}  // namespace
