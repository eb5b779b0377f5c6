// Sums of attention weights by segment of keys, for rows of f16 or bf16 queries, on tensor cores. Products of half precision are exact
// in f32 and are summed in f32, so nothing is lost against CUDA cores.
//
// The scores are computed twice and never stored. `masses_ends` finds each query's maximum and sum over each piece of the keys, and
// `masses_join` over all of them. Then `masses_columns` computes the scores again, with keys and queries in each other's place, and
// adds up what all queries pay to each key. `masses_sums` adds keys up to segments. Where segments begin matters to the last step
// alone, which is why the cost depends on the keys and not on how many spans there are. Every sum is taken in one order.

#include "tensor_cores.cuh"

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32;
// Keys of a piece: `PIECE` in masses.rs.
constexpr int PIECE = 1024;
// Vectors that pass by at a time; queries are padded to a multiple of it.
constexpr int BN = 64;

extern __shared__ uint4 SHARED[];

// Products of TILES times 16 vectors a warp, which stay in its registers, with blocks of others that pass by.
template <typename T, int D, int TILES> struct Scores : Rows<T, D, THREADS> {
    using Rows<T, D, THREADS>::PITCH;
    using Rows<T, D, THREADS>::fetch;
    // Vectors of a warp, and of the thread block.
    static constexpr int OF_WARP = 16 * TILES, OF_BLOCK = WARPS * OF_WARP;

    uint32_t mine[TILES][D / 16][4];

    // Takes the block's vectors, `from(i)` each, of which a null one is zeros.
    template <typename From> __device__ void begin(int d, bool wide, const T *any, From from) {
        uint32_t shared = shared_address(SHARED);
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        fetch(shared, OF_BLOCK, d, wide, any, from);
        copies_commit();
        copies_wait();
        __syncthreads();
        uint32_t row = shared + ((warp * OF_WARP + lane % 16) * PITCH + lane / 16 * 8) * 2;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int step = 0; step < D / 16; step++) load_matrices(mine[tile][step], row + (tile * 16 * PITCH + step * 16) * 2);
        __syncthreads();
    }

    // Walks over the blocks `from..to` of BN vectors, `other(i)` each; `each(block, scores)` is told their products.
    template <typename Other, typename Each>
    __device__ void walk(int d, bool wide, const T *any, int from, int to, Other other, Each each) {
        uint32_t shared = shared_address(SHARED);
        int lane = threadIdx.x % 32;
        auto fetch_block = [&](int block) {
            fetch(shared + (block - from) % 2 * BN * PITCH * 2, BN, d, wide, any, [&](int i) { return other(block * BN + i); });
            copies_commit();
        };
        if (from < to) fetch_block(from);
        for (int block = from; block < to; block++) {
            copies_wait();
            __syncthreads();
            if (block + 1 < to) fetch_block(block + 1);
            uint32_t row = shared + (block - from) % 2 * BN * PITCH * 2 +
                           ((lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8) * 2;
            float scores[TILES][BN / 8][4] = {};
#pragma unroll
            for (int step = 0; step < D / 16; step++)
#pragma unroll
                for (int i = 0; i < BN / 16; i++) {
                    uint32_t b[4];
                    load_matrices(b, row + (i * 16 * PITCH + step * 16) * 2);
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++) {
                        multiply<T>(scores[tile][2 * i], mine[tile][step], b[0], b[1]);
                        multiply<T>(scores[tile][2 * i + 1], mine[tile][step], b[2], b[3]);
                    }
                }
            each(block, scores);
        }
        // Whoever begins anew writes where others may still read.
        __syncthreads();
    }
};

// Products become scores under a soft cap.
template <int TILES> __device__ void cap(float (&scores)[TILES][BN / 8][4], const Rule &rule) {
    if (rule.cap > 0) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int i = 0; i < BN / 8; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) scores[tile][i][j] = capped(scores[tile][i][j], rule);
    }
}

// Queries of one head at `offset` and on, and the keys of its group: key j is at position j.
template <typename T> struct Operands {
    const T *q;
    int64_t q_row, q_head;
    const T *k;
    int64_t k_head;
    int d, group, rows, offset, wide;
};

// Thread blocks are (piece of keys, block of queries, head); `first_piece` is the first piece that any query sees.
template <typename T, int D, int TILES>
__device__ void ends_of(Operands<T> of, Rule rule, int first_piece, int padded, Ends *out) {
    using Of = Scores<T, D, TILES>;
    Of products;
    int head = blockIdx.z, heads = gridDim.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int first = blockIdx.y * Of::OF_BLOCK, piece = first_piece + blockIdx.x;
    const T *q = of.q + head * of.q_head, *k = of.k + head / of.group * of.k_head;
    // The keys of the piece that any query of the block sees.
    int from = max(piece * PIECE, rule.first_seen(of.offset + first));
    int to = min((piece + 1) * PIECE, of.offset + min(first + Of::OF_BLOCK, of.rows));
    float max[TILES][2], sum[TILES][2];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int half = 0; half < 2; half++) max[tile][half] = -INFINITY, sum[tile][half] = 0;
    int mine = first + warp * Of::OF_WARP + lane / 4;
    if (from < to) {
        products.begin(of.d, of.wide, q, [&](int i) { return first + i < of.rows ? q + (first + i) * of.q_row : nullptr; });
        auto key = [&](int j) { return j < to ? k + (int64_t)j * of.d : nullptr; };
        products.walk(of.d, of.wide, k, from / BN, (to + BN - 1) / BN, key, [&](int block, float (&scores)[TILES][BN / 8][4]) {
            int begin = block * BN, column = begin + lane % 4 * 2, of_warp = of.offset + first + warp * Of::OF_WARP;
            // All of the warp's queries see all of these keys.
            bool all = begin + BN <= min(to, of_warp + 1) && begin >= rule.first_seen(of_warp + Of::OF_WARP - 1);
            cap(scores, rule);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int position = of.offset + mine + tile * 16 + half * 8, seen = rule.first_seen(position);
                    if (!all) {
#pragma unroll
                        for (int i = 0; i < BN / 8; i++)
#pragma unroll
                            for (int j = 0; j < 2; j++) {
                                int at = column + i * 8 + j;
                                if (at < seen || at > position || at >= to) scores[tile][i][2 * half + j] = -INFINITY;
                            }
                    }
                    float most = -INFINITY;
#pragma unroll
                    for (int i = 0; i < BN / 8; i++)
                        most = fmaxf(most, fmaxf(scores[tile][i][2 * half], scores[tile][i][2 * half + 1]));
                    float now = fmaxf(max[tile][half], max_of_four(most) * rule.unit);
                    // Minus infinity less itself is no number.
                    float base = now == -INFINITY ? 0.0f : now, added = 0;
#pragma unroll
                    for (int i = 0; i < BN / 8; i++)
#pragma unroll
                        for (int j = 0; j < 2; j++) added += power(fmaf(scores[tile][i][2 * half + j], rule.unit, -base));
                    sum[tile][half] = fmaf(sum[tile][half], power(max[tile][half] - base), added);
                    max[tile][half] = now;
                }
        });
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = sum_of_four(sum[tile][half]);
            int row = mine + tile * 16 + half * 8;
            if (lane % 4 == 0 && row < of.rows)
                out[((int64_t)blockIdx.x * heads + head) * padded + row] = {max[tile][half], total};
        }
}

// Thread blocks are (block of keys, kv head); `first_block` is the first that any query sees. `wholes` has of each head and query
// the greatest score and 1 / the sum of all weights, and zeros behind the last query. Of key j of each head goes to
// `out[head][j - first_block * keys of a block]`.
template <typename T, int D, int TILES>
__device__ void columns_of(Operands<T> of, Rule rule, int first_block, int keys, int padded, const float2 *wholes, float *out,
                           int64_t out_head) {
    using Of = Scores<T, D, TILES>;
    Of products;
    int kv_head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int first = (first_block + blockIdx.x) * Of::OF_BLOCK, last = min(first + Of::OF_BLOCK, keys) - 1;
    const T *k = of.k + kv_head * of.k_head;
    products.begin(of.d, of.wide, k, [&](int i) { return first + i < keys ? k + (int64_t)(first + i) * of.d : nullptr; });
    // The queries that see any of these keys.
    int from = max(0, first - of.offset), to = of.rows;
    if (rule.window) to = min(to, last + rule.window - of.offset);
    int mine = first + warp * Of::OF_WARP + lane / 4;
    for (int in_group = 0; in_group < of.group; in_group++) {
        int head = kv_head * of.group + in_group;
        const T *q = of.q + head * of.q_head;
        const float2 *of_head = wholes + (int64_t)head * padded;
        float sum[TILES][2] = {};
        auto query = [&](int i) { return i < of.rows ? q + i * of.q_row : nullptr; };
        if (from < to)
            products.walk(of.d, of.wide, q, from / BN, (to + BN - 1) / BN, query, [&](int block, float (&scores)[TILES][BN / 8][4]) {
                int row = block * BN + lane % 4 * 2;
                int begin = of.offset + block * BN;
                // The first of these queries sees the last of the keys, and the last query the first key.
                bool all = last <= begin && first >= rule.first_seen(begin + BN - 1);
                cap(scores, rule);
                if (!all) {
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                        for (int i = 0; i < BN / 8; i++)
#pragma unroll
                            for (int j = 0; j < 4; j++) {
                                int key = mine + tile * 16 + j / 2 * 8, position = of.offset + row + i * 8 + j % 2;
                                if (key > position || key < rule.first_seen(position)) scores[tile][i][j] = -INFINITY;
                            }
                }
#pragma unroll
                for (int i = 0; i < BN / 8; i++) {
                    float4 two = *reinterpret_cast<const float4 *>(of_head + row + i * 8);
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                        for (int j = 0; j < 4; j++) {
                            float weight = power(fmaf(scores[tile][i][j], rule.unit, j % 2 ? -two.z : -two.x));
                            sum[tile][j / 2] = fmaf(weight, j % 2 ? two.w : two.y, sum[tile][j / 2]);
                        }
                }
            });
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float total = sum_of_four(sum[tile][half]);
                int key = mine + tile * 16 + half * 8;
                if (lane % 4 == 0) out[head * out_head + key - first_block * Of::OF_BLOCK] = total;
            }
    }
}

}  // namespace

#define MASSES(T, NAME, D, TILES)                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 3) masses_ends_##NAME##_##D(                                           \
        const T *q, int64_t q_row, int64_t q_head, const T *k, int64_t k_head, int d, int group, int rows, int offset,           \
        float unit, float inner, float cap, int window, int wide, int first_piece, int padded, Ends *out) {                      \
        ends_of<T, D, TILES>({q, q_row, q_head, k, k_head, d, group, rows, offset, wide}, {unit, inner, cap, window},            \
                             first_piece, padded, out);                                                                          \
    }                                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 3) masses_columns_##NAME##_##D(                                        \
        const T *q, int64_t q_row, int64_t q_head, const T *k, int64_t k_head, int d, int group, int rows, int offset,           \
        float unit, float inner, float cap, int window, int wide, int first_block, int keys, int padded, const float2 *wholes,   \
        float *out, int64_t out_head) {                                                                                          \
        columns_of<T, D, TILES>({q, q_row, q_head, k, k_head, d, group, rows, offset, wide}, {unit, inner, cap, window},         \
                                first_block, keys, padded, wholes, out, out_head);                                               \
    }
#define MASSES_OF(T, NAME) MASSES(T, NAME, 64, 2) MASSES(T, NAME, 128, 2) MASSES(T, NAME, 256, 1)

MASSES_OF(__half, f16)
MASSES_OF(__nv_bfloat16, bf16)

// Joins the pieces and the sink, if any, into each query's maximum and 1 / sum, as `columns_of` reads them: one thread a query, heads in
// the grid's y.
extern "C" __global__ void __launch_bounds__(THREADS) masses_join(const Ends *ends, int pieces, int rows, int padded, const float *sinks,
                                                                 float2 *out) {
    int head = blockIdx.y, heads = gridDim.y, row = blockIdx.x * THREADS + threadIdx.x;
    if (row >= padded) return;
    float max = -INFINITY, sum = 0;
    if (row < rows) {
        const Ends *mine = ends + (int64_t)head * padded + row;
        int64_t step = (int64_t)heads * padded;
        if (sinks) max = sinks[head] * LOG2E, sum = 1;
        for (int piece = 0; piece < pieces; piece++) {
            Ends here = mine[piece * step];
            if (here.sum == 0) continue;
            float now = fmaxf(max, here.max);
            sum = sum * power(max - now) + here.sum * power(here.max - now);
            max = now;
        }
    }
    out[(int64_t)head * padded + row] = sum > 0 ? make_float2(max, 1.0f / sum) : make_float2(0, 0);
}

// Sums over all queries of a head of the weights on the sink and on each segment. Segment s is the keys `borders[s]..borders[s + 1]` among
// those from `first` to `end`. Thread blocks are (1 + segments, heads).
extern "C" __global__ void __launch_bounds__(THREADS) masses_sums(const float *columns, int64_t by_head, int first, int end,
                                                                 const unsigned *borders, const float *sinks, const float2 *wholes,
                                                                 int rows, int padded, float *out) {
    __shared__ float of_warps[WARPS];
    int segment = blockIdx.x, head = blockIdx.y;
    float mine = 0;
    if (segment == 0) {
        for (int row = threadIdx.x; sinks && row < rows; row += THREADS) {
            float2 whole = wholes[(int64_t)head * padded + row];
            mine += power(sinks[head] * LOG2E - whole.x) * whole.y;
        }
    } else {
        int from = max((int)borders[segment - 1], first), to = min((int)borders[segment], end);
        columns += head * by_head - first;
#pragma unroll 4
        for (int key = from + threadIdx.x; key < to; key += THREADS) mine += columns[key];
    }
    for (int by = 16; by > 0; by /= 2) mine += __shfl_xor_sync(~0u, mine, by);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int warp = 0; warp < WARPS; warp++) sum += of_warps[warp];
        out[head * gridDim.x + segment] = sum;
    }
}
