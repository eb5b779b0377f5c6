// What chosen queries pay to segments of keys: f32 throughout, whatever the queries and keys are in, which are read where they
// lie. `scripts/kernels_ptx.sh` makes `rows.ptx` of this file.
//
// Keys are cut into pieces, at the segments' borders among other places. The first kernel finds how each query stands with each
// piece by itself; the second adds up what that makes of the whole. No weights are ever written.

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;

__device__ float number(float x) { return x; }
__device__ float number(__half x) { return __half2float(x); }
__device__ float number(__nv_bfloat16 x) { return __bfloat162float(x); }

// What has been seen of a row: the greatest score and the sum of e^(score - max).
struct Ends {
    float max, sum;
};

// Nothing has been seen where the sum is 0.
__device__ Ends joined(Ends a, Ends b) {
    if (a.sum == 0) return b;
    if (b.sum == 0) return a;
    float max = fmaxf(a.max, b.max);
    return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
}

// A block of ROWS x KEYS scores; each thread has R x 4 of them, and DEPTH numbers of every row and key are in shared memory at a time.
template <int R, int ACROSS, int DEPTH> struct Block {
    static constexpr int DOWN = THREADS / ACROSS, ROWS = DOWN * R, KEYS = ACROSS * 4;
    float rows[DEPTH][ROWS + 4], keys[DEPTH][KEYS + 4];
    Ends ends[ROWS][ACROSS];

    // DEPTH numbers from `from` on of each of N rows, transposed, those of row `at(i)`; zeros where there is none.
    template <typename T, int N, typename At>
    static __device__ void take(float (&to)[DEPTH][N + 4], int from, int d, At at) {
        for (int i = threadIdx.x; i < N * DEPTH; i += THREADS) {
            int row = i / DEPTH, column = i % DEPTH;
            const T *of_row = at(row);
            to[column][row] = of_row && from + column < d ? number(of_row[from + column]) : 0.0f;
        }
    }
};

// Thread blocks are (piece, block of rows, kv head); a query counts for each head of a group. `cuts` are the pieces' borders. Query
// i is at position `offset` + i, and key j at j.
template <typename T, int R, int ACROSS, int DEPTH>
__device__ void pieces(const T *q, int64_t q_row, int64_t q_head, const T *k, int64_t k_head, int d, int group, int queries,
                       int offset, int window, float scale, float cap, const unsigned *cuts, Ends *out) {
    using Of = Block<R, ACROSS, DEPTH>;
    __shared__ Of shared;
    int kv_head = blockIdx.z, x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS, first = blockIdx.y * Of::ROWS;
    int rows = queries * group, start = cuts[blockIdx.x], end = cuts[blockIdx.x + 1];
    q += kv_head * group * q_head;
    k += kv_head * k_head;
    // What the block's first query sees first, and its last one last, of the piece.
    int first_position = offset + first / group, last_position = offset + (min(first + Of::ROWS, rows) - 1) / group;
    int from = max(start, window && first_position >= window ? first_position + 1 - window : 0);
    int to = min(end, last_position + 1);
    Ends ends[R];
#pragma unroll
    for (int r = 0; r < R; r++) ends[r] = {-INFINITY, 0};
    for (int block = from; block < to; block += Of::KEYS) {
        float scores[R][4] = {};
        for (int deep = 0; deep < d; deep += DEPTH) {
            __syncthreads();
            Of::template take<T, Of::ROWS>(shared.rows, deep, d, [&](int row) {
                int packed = first + row;
                return packed < rows ? q + packed / group * q_row + packed % group * q_head : nullptr;
            });
            Of::template take<T, Of::KEYS>(shared.keys, deep, d, [&](int key) {
                return block + key < to ? k + (int64_t)(block + key) * d : nullptr;
            });
            __syncthreads();
#pragma unroll
            for (int i = 0; i < DEPTH; i++)
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        scores[r][c] = fmaf(shared.rows[i][y * R + r], shared.keys[i][x * 4 + c], scores[r][c]);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            int packed = first + y * R + r, position = offset + packed / group, key = block + x * 4;
            int seen = window && position >= window ? position + 1 - window : 0, stop = min(to, position + 1);
            float most = ends[r].max;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                scores[r][c] *= scale;
                if (cap > 0) scores[r][c] = cap * tanhf(scores[r][c] / cap);
                if (key + c >= seen && key + c < stop) most = fmaxf(most, scores[r][c]);
            }
            // Minus infinity less itself is no number, so that rows that have seen nothing are left as they are.
            if (most == -INFINITY) continue;
            ends[r] = {most, ends[r].sum * expf(ends[r].max - most)};
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (key + c >= seen && key + c < stop) ends[r].sum += expf(scores[r][c] - most);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) shared.ends[y * R + r][x] = ends[r];
    __syncthreads();
    int row = threadIdx.x, packed = first + row;
    if (row >= Of::ROWS || packed >= rows) return;
    Ends all = {0, 0};
    for (int i = 0; i < ACROSS; i++) all = joined(all, shared.ends[row][i]);
    int64_t head = kv_head * group + packed % group, piece = blockIdx.x;
    out[(head * queries + packed / group) * gridDim.x + piece] = all;
}


__device__ Ends of_warp(Ends mine) {
    for (int by = 16; by > 0; by /= 2)
        mine = joined(mine, {__shfl_xor_sync(~0u, mine.max, by), __shfl_xor_sync(~0u, mine.sum, by)});
    return mine;
}

}  // namespace

#define PIECES(T, NAME)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) rows_many_##NAME(                                                      \
        const T *q, int64_t q_row, int64_t q_head, const T *k, int64_t k_head, int d, int group, int queries, int offset,        \
        int window, float scale, float cap, const unsigned *cuts, Ends *out) {                                                   \
        pieces<T, 4, 16, 16>(q, q_row, q_head, k, k_head, d, group, queries, offset, window, scale, cap, cuts, out);             \
    }                                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS) rows_few_##NAME(                                                       \
        const T *q, int64_t q_row, int64_t q_head, const T *k, int64_t k_head, int d, int group, int queries, int offset,        \
        int window, float scale, float cap, const unsigned *cuts, Ends *out) {                                                   \
        pieces<T, 2, 64, 16>(q, q_row, q_head, k, k_head, d, group, queries, offset, window, scale, cap, cuts, out);             \
    }

PIECES(float, f32)
PIECES(__half, f16)
PIECES(__nv_bfloat16, bf16)

// How each row stands with all pieces, the sinks among them: thread blocks are (row, head).
extern "C" __global__ void __launch_bounds__(THREADS) rows_whole(const Ends *ends, int64_t by_head, int64_t by_row,
                                                                int64_t by_piece, int pieces, float unit, const float *sinks,
                                                                Ends *out) {
    __shared__ Ends of_warps[WARPS];
    int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    ends += head * by_head + row * by_row;
    Ends mine = {0, 0};
    for (int i = threadIdx.x; i < pieces; i += THREADS) {
        Ends here = ends[i * by_piece];
        mine = joined(mine, {here.max * unit, here.sum});
    }
    mine = of_warp(mine);
    if (lane == 0) of_warps[warp] = mine;
    __syncthreads();
    if (threadIdx.x) return;
    if (sinks) mine = joined(mine, {sinks[head], 1.0f});
    for (int i = 1; i < WARPS; i++) mine = joined(mine, of_warps[i]);
    out[head * gridDim.x + row] = mine;
}

// What all rows of a head pay to a segment, and first of all to the sinks: thread blocks are (1 + segment, head). Segment s is the
// pieces `firsts[s]..firsts[s + 1]`.
extern "C" __global__ void __launch_bounds__(THREADS) rows_shares(const Ends *ends, int64_t by_head, int64_t by_row,
                                                                 int64_t by_piece, int rows, float unit, const unsigned *firsts,
                                                                 const Ends *whole, const float *sinks, float *out) {
    __shared__ float of_warps[WARPS];
    int segment = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    whole += head * rows;
    ends += head * by_head;
    float mine = 0;
    if (segment == 0) {
        for (int row = threadIdx.x; sinks && row < rows; row += THREADS)
            mine += expf(sinks[head] - whole[row].max) / whole[row].sum;
    } else {
        int first = firsts[segment - 1], pieces = (int)firsts[segment] - first;
        int64_t all = (int64_t)pieces * rows;
        for (int64_t i = threadIdx.x; i < all; i += THREADS) {
            int row = i / pieces;
            Ends here = ends[row * by_row + (first + i % pieces) * by_piece];
            if (here.sum != 0) mine += here.sum * expf(here.max * unit - whole[row].max) / whole[row].sum;
        }
    }
    for (int by = 16; by > 0; by /= 2) mine += __shfl_xor_sync(~0u, mine, by);
    if (lane == 0) of_warps[warp] = mine;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < WARPS; i++) mine += of_warps[i];
    out[head * gridDim.x + segment] = mine;
}
