// Sums of attention weights by segment of keys, for rows of f32 queries. Queries and keys are read in place.
//
// Keys are cut into pieces, at the segments' borders among other places. A thread block finds how some queries stand with a piece;
// the last of those of the same queries adds up what that makes of the whole, and the last of these adds up the queries. Each sum
// is taken in one order, whichever block comes last. No weights are ever written.

#include <cstdint>

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;

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
    template <int N, typename At>
    static __device__ void take(float (&to)[DEPTH][N + 4], int from, int d, At at) {
        for (int i = threadIdx.x; i < N * DEPTH; i += THREADS) {
            int row = i / DEPTH, column = i % DEPTH;
            const float *of_row = at(row);
            to[column][row] = of_row && from + column < d ? of_row[from + column] : 0.0f;
        }
    }
};

__device__ Ends of_warp(Ends mine) {
    for (int by = 16; by > 0; by /= 2)
        mine = joined(mine, {__shfl_xor_sync(~0u, mine.max, by), __shfl_xor_sync(~0u, mine.sum, by)});
    return mine;
}

// How a row stands with all pieces and the sink, if there is one: found by a warp.
__device__ Ends whole(const Ends *ends, int64_t by_piece, int pieces, float unit, const float *sink) {
    Ends mine = {0, 0};
    for (int i = threadIdx.x % 32; i < pieces; i += 32) {
        Ends here = ends[i * by_piece];
        mine = joined(mine, {here.max * unit, here.sum});
    }
    mine = of_warp(mine);
    return sink ? joined({*sink, 1.0f}, mine) : mine;
}

// Rows of one head, and how each stands with all pieces.
struct Rows {
    const Ends *ends;
    int64_t by_row, by_piece;
    int count;
    float unit;
    const Ends *wholes;
    int wholes_by_row;
};

// What the rows pay to a segment, the pieces firsts[segment - 1]..firsts[segment], or for 0 to the sink: found by a warp.
__device__ float paid(const Rows &rows, int segment, const unsigned *firsts, const float *sink) {
    float mine = 0;
    int lane = threadIdx.x % 32;
    if (segment == 0) {
        for (int row = lane; sink && row < rows.count; row += 32) {
            Ends all = rows.wholes[row * rows.wholes_by_row];
            mine += expf(*sink - all.max) / all.sum;
        }
    } else {
        int first = firsts[segment - 1], pieces = (int)firsts[segment] - first, all = pieces * rows.count;
        for (int i = lane; i < all; i += 32) {
            int row = i / pieces;
            Ends here = rows.ends[row * rows.by_row + (first + i % pieces) * rows.by_piece];
            Ends of_row = rows.wholes[row * rows.wholes_by_row];
            if (here.sum != 0) mine += here.sum * expf(here.max * rows.unit - of_row.max) / of_row.sum;
        }
    }
    for (int by = 16; by > 0; by /= 2) mine += __shfl_xor_sync(~0u, mine, by);
    return mine;
}

// Whether this thread block is the last of `count` to come here. Then it sees what all of them have written before, and the
// counter is what it was before the first came: 0.
__device__ bool is_last(unsigned *counter, unsigned count) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicInc(counter, count - 1) == count - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}

// What is made of the pieces: sums by segment, the sinks' in front, (heads, 1 + segments).
struct Sums {
    const float *sinks;         // null: none
    const unsigned *firsts;     // the number of the first piece of each segment, and of the one behind the last
    int segments;
    float *parts;               // (heads, 1 + segments, blocks of rows), where there are several of these
    unsigned *counters;         // 0: one of each block of rows of each kv head, then one of each kv head
    float *out;
};

// Thread blocks are (piece, block of rows, kv head); a query counts for each head of a group. `cuts` are the pieces' borders. Query
// i is at position `offset` + i, and key j at j.
template <int R, int ACROSS, int DEPTH>
__device__ void pieces(const float *q, int64_t q_row, int64_t q_head, const float *k, int64_t k_head, int d, int group, int queries,
                       int offset, int window, float scale, float cap, const unsigned *cuts, Ends *out, Sums sums) {
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
            Of::template take<Of::ROWS>(shared.rows, deep, d, [&](int row) {
                int packed = first + row;
                return packed < rows ? q + packed / group * q_row + packed % group * q_head : nullptr;
            });
            Of::template take<Of::KEYS>(shared.keys, deep, d, [&](int key) {
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
    int piece = blockIdx.x, count = gridDim.x, here = min(Of::ROWS, rows - first);
    auto of_row = [&](int packed) { return out + ((int64_t)(kv_head * group + packed % group) * queries + packed / group) * count; };
    if (threadIdx.x < here) {
        Ends all = {0, 0};
        for (int i = 0; i < ACROSS; i++) all = joined(all, shared.ends[threadIdx.x][i]);
        of_row(first + threadIdx.x)[piece] = all;
    }
    if (!is_last(sums.counters + kv_head * gridDim.y + blockIdx.y, count)) return;
    Ends *wholes = shared.ends[0];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int row = warp; row < here; row += WARPS) {
        const float *sink = sums.sinks ? sums.sinks + kv_head * group + (first + row) % group : nullptr;
        Ends all = whole(of_row(first + row), 1, count, 1, sink);
        if (lane == 0) wholes[row] = all;
    }
    __syncthreads();
    int columns = 1 + sums.segments, blocks = gridDim.y;
    for (int i = warp; i < group * columns; i += WARPS) {
        int in_group = i / columns, head = kv_head * group + in_group, segment = i % columns;
        // The first row of that head in this block.
        int row = (in_group + group - first % group) % group;
        int of_head = row < here ? (here - row + group - 1) / group : 0;
        Rows those = {of_row(first + row), count, 1, of_head, 1, wholes + row, group};
        float sum = paid(those, segment, sums.firsts, sums.sinks ? sums.sinks + head : nullptr);
        int64_t to = (int64_t)head * columns + segment;
        if (lane == 0) (blocks == 1 ? sums.out[to] : sums.parts[to * blocks + blockIdx.y]) = sum;
    }
    if (blocks == 1 || !is_last(sums.counters + gridDim.z * blocks + kv_head, blocks)) return;
    for (int i = threadIdx.x; i < group * columns; i += THREADS) {
        int64_t to = (int64_t)kv_head * group * columns + i;
        float sum = 0;
        for (int block = 0; block < blocks; block++) sum += sums.parts[to * blocks + block];
        sums.out[to] = sum;
    }
}

}  // namespace

#define PIECES(KIND, R, ACROSS)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) rows_##KIND(                                                           \
        const float *q, int64_t q_row, int64_t q_head, const float *k, int64_t k_head, int d, int group, int queries,            \
        int offset, int window, float scale, float cap, const unsigned *cuts, Ends *ends, const float *sinks,                    \
        const unsigned *firsts, int segments, float *parts, unsigned *counters, float *out) {                                    \
        pieces<R, ACROSS, 16>(q, q_row, q_head, k, k_head, d, group, queries, offset, window, scale, cap, cuts, ends,            \
                              Sums{sinks, firsts, segments, parts, counters, out});                                              \
    }
PIECES(many, 4, 16)
PIECES(few, 2, 64)

// What one row of each head pays to each segment, of pieces that another kernel has found: thread blocks are heads, and each warp
// finds for itself how the row stands with the whole.
extern "C" __global__ void __launch_bounds__(THREADS) rows_shares(const Ends *ends, int64_t by_head, int64_t by_piece, int pieces,
                                                                 float unit, const float *sinks, const unsigned *firsts,
                                                                 int segments, float *out) {
    int head = blockIdx.x, lane = threadIdx.x % 32;
    const float *sink = sinks ? sinks + head : nullptr;
    ends += head * by_head;
    Ends all = whole(ends, by_piece, pieces, unit, sink);
    Rows row = {ends, 0, by_piece, 1, unit, &all, 0};
    for (int segment = threadIdx.x / 32; segment <= segments; segment += WARPS) {
        float sum = paid(row, segment, firsts, sink);
        if (lane == 0) out[head * (1 + segments) + segment] = sum;
    }
}
