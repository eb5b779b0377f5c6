// Softmax attention of f16 and bf16 on tensor cores, in the scheme of FlashAttention-2: a block of queries walks over blocks of
// keys and keeps, of every query, the greatest score so far, the sum of its weights and the weighted sum of the values.
//
// Keys and values are read where they lie in the cache, (kv_heads, keys, d) with the rows of a head side by side. Blocks of keys
// begin at multiples of their size in the sequence, and what a query does not see adds exactly nothing, so that its bits depend
// neither on the other queries of a launch nor on where the cache begins. Scores, weights and sums are f32; weights are rounded
// to the values' type for their product. Scores are counted in powers of two: `unit` is the scale times log2(e).

#include "tensor_cores.cuh"

namespace {

// Keys of a part of split-K: `SPLIT_K` in src/attention/site.rs.
constexpr int PART = 256;

// Keys and values of one head. The first of them is at position `first` of the sequence.
template <typename T> struct Keys {
    const T *k, *v;
    int first, count, d;
    bool wide;          // rows begin at multiples of 16 bytes, else of 8
};

// Heads of up to D numbers, keys in blocks of BN; a warp has TILES times 16 queries, for all of which a fragment of keys or values
// is read once from shared memory.
template <typename T, int D, int BN, int THREADS, int TILES> struct Attention : Rows<T, D, THREADS> {
    using Rows<T, D, THREADS>::PITCH;
    using Rows<T, D, THREADS>::threads;
    using Rows<T, D, THREADS>::fetch;
    static constexpr int BLOCK = BN * PITCH;
    // Where the registers do not hold the queries, they stay in shared memory, in front of the keys.
    static constexpr bool QUERIES_STAY = D > 128 || TILES > 1;
    // Queries of a warp.
    static constexpr int QUERIES = 16 * TILES;

    float out[TILES][D / 8][4];
    // Queries `lane / 4` and `lane / 4 + 8` of each tile; the sums cover this lane's keys.
    float max[TILES][2], sum[TILES][2];
    int first_seen[TILES][2], end_seen[TILES][2];
    uint32_t query[QUERIES_STAY ? 1 : D / 16][4];
    uint32_t queries;   // this lane's row of the warp's queries in shared memory

    // A block of keys and, behind it, of values.
    static __device__ void fetch_keys(uint32_t to, const Keys<T> &keys, int block) {
        int before = block * BN - keys.first;
        auto row_of = [&](const T *rows) {
            return [=, &keys](int row) {
                int at = before + row;
                return at >= 0 && at < keys.count ? rows + (int64_t)at * keys.d : nullptr;
            };
        };
        fetch(to, BN, keys.d, keys.wide, keys.k, row_of(keys.k));
        fetch(to + BLOCK * 2, BN, keys.d, keys.wide, keys.v, row_of(keys.v));
        copies_commit();
    }

    // Takes the block's queries, `from(row)` each, and stands at the beginning. `shared` is free afterwards, but for queries
    // that stay. Returns where keys may go.
    template <typename From> __device__ uint32_t begin(uint32_t shared, int d, bool wide, const T *any, From from) {
        int rows = threads() / 32 * QUERIES, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        fetch(shared, rows, d, wide, any, from);
        copies_commit();
        copies_wait();
        __syncthreads();
        queries = shared + ((warp * QUERIES + lane % 16) * PITCH + lane / 16 * 8) * 2;
        if (!QUERIES_STAY) {
#pragma unroll
            for (int step = 0; step < D / 16; step++) load_matrices(query[step], queries + step * 32);
            __syncthreads();
        }
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int i = 0; i < D / 8; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) out[tile][i][j] = 0;
            max[tile][0] = max[tile][1] = -INFINITY;
            sum[tile][0] = sum[tile][1] = 0;
        }
        return QUERIES_STAY ? shared + rows * PITCH * 2 : shared;
    }

    // Walks over the blocks `from..to` of keys. A warp whose queries see only `warp_first..warp_end` leaves the others out. After
    // each block that it has not left out `seen(block, weights)` is told the weights, relative to `max`.
    template <typename Seen>
    __device__ void walk(uint32_t shared, const Keys<T> &keys, const Rule &rule, int from, int to, int warp_first, int warp_end,
                         Seen seen) {
        if (from < to) fetch_keys(shared, keys, from);
        for (int block = from; block < to; block++) {
            uint32_t here = shared + (block - from) % 2 * BLOCK * 4;
            copies_wait();
            __syncthreads();
            if (block + 1 < to) fetch_keys(shared + (block + 1 - from) % 2 * BLOCK * 4, keys, block + 1);
            if (block * BN >= warp_end || (block + 1) * BN <= warp_first) continue;
            float weights[TILES][BN / 8][4];
            score(weights, here);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) weigh(tile, weights[tile], rule, block * BN);
            seen(block, weights);
            gather(weights, here + BLOCK * 2);
        }
    }

    __device__ void score(float (&scores)[TILES][BN / 8][4], uint32_t keys) {
        int lane = threadIdx.x % 32;
        uint32_t row = keys + ((lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8) * 2;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int i = 0; i < BN / 8; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) scores[tile][i][j] = 0;
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            uint32_t a[TILES][4];
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                if (QUERIES_STAY) {
                    load_matrices(a[tile], queries + (tile * 16 * PITCH + step * 16) * 2);
                } else {
#pragma unroll
                    for (int j = 0; j < 4; j++) a[tile][j] = query[step][j];
                }
            }
#pragma unroll
            for (int i = 0; i < BN / 16; i++) {
                uint32_t b[4];
                load_matrices(b, row + (i * 16 * PITCH + step * 16) * 2);
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    multiply<T>(scores[tile][2 * i], a[tile], b[0], b[1]);
                    multiply<T>(scores[tile][2 * i + 1], a[tile], b[2], b[3]);
                }
            }
        }
    }

    // Scores of the keys from position `first` on become weights relative to the greatest score up to here.
    __device__ void weigh(int tile, float (&scores)[BN / 8][4], const Rule &rule, int first) {
        if (rule.cap > 0) {
#pragma unroll
            for (int i = 0; i < BN / 8; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) scores[i][j] = capped(scores[i][j], rule);
        }
        int column = first + threadIdx.x % 4 * 2;
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int begins = first_seen[tile][half], ends = end_seen[tile][half];
            if (first < begins || first + BN > ends) {
#pragma unroll
                for (int i = 0; i < BN / 8; i++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        int position = column + i * 8 + j;
                        if (position < begins || position >= ends) scores[i][2 * half + j] = -INFINITY;
                    }
            }
            float most = -INFINITY;
#pragma unroll
            for (int i = 0; i < BN / 8; i++) most = fmaxf(most, fmaxf(scores[i][2 * half], scores[i][2 * half + 1]));
            float now = fmaxf(max[tile][half], max_of_four(most) * rule.unit);
            // Before anything has been seen there is nothing to scale, and minus infinity less itself is no number.
            float base = now == -INFINITY ? 0.0f : now, added = 0;
            factor[half] = power(max[tile][half] - base);
            max[tile][half] = now;
#pragma unroll
            for (int i = 0; i < BN / 8; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float weight = power(fmaf(scores[i][2 * half + j], rule.unit, -base));
                    scores[i][2 * half + j] = weight;
                    added += weight;
                }
            sum[tile][half] = fmaf(sum[tile][half], factor[half], added);
        }
        // Far into a prompt the greatest scores seldom change, and a factor of 1 changes no bit.
        if (__any_sync(~0u, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
            for (int i = 0; i < D / 8; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) out[tile][i][j] *= factor[j / 2];
        }
    }

    __device__ void gather(const float (&weights)[TILES][BN / 8][4], uint32_t values) {
        int lane = threadIdx.x % 32;
        uint32_t row = values + (lane % 16 * PITCH + lane / 16 * 8) * 2;
#pragma unroll
        for (int step = 0; step < BN / 16; step++) {
            uint32_t a[TILES][4];
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const float (&left)[4] = weights[tile][2 * step], (&right)[4] = weights[tile][2 * step + 1];
                a[tile][0] = pair<T>(left[0], left[1]);
                a[tile][1] = pair<T>(left[2], left[3]);
                a[tile][2] = pair<T>(right[0], right[1]);
                a[tile][3] = pair<T>(right[2], right[3]);
            }
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                uint32_t b[4];
                load_transposed(b, row + (step * 16 * PITCH + i * 16) * 2);
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    multiply<T>(out[tile][2 * i], a[tile], b[0], b[1]);
                    multiply<T>(out[tile][2 * i + 1], a[tile], b[2], b[3]);
                }
            }
        }
    }
};

extern __shared__ uint4 SHARED[];

// A thread block a head and TILES times 16 queries a warp; those that see most come first.
template <typename T, int D, int BN, int THREADS, int TILES>
__device__ void prefill(const T *q, int64_t q_row, int64_t q_head, const T *k, int64_t k_head, const T *v, int64_t v_head, int d,
                        int group, int rows, int offset, int first_key, int count, Rule rule, int wide, const float *sinks,
                        T *out) {
    using Of = Attention<T, D, BN, THREADS, TILES>;
    Of attention;
    int head = blockIdx.y, heads = gridDim.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int of_block = THREADS / 32 * Of::QUERIES, first = (gridDim.x - 1 - blockIdx.x) * of_block;
    q += head * q_head;
    Keys<T> keys = {k + head / group * k_head, v + head / group * v_head, first_key, count, d, wide != 0};
    uint32_t shared = attention.begin(shared_address(SHARED), d, wide, q, [&](int row) {
        return first + row < rows ? q + (first + row) * q_row : nullptr;
    });
    int mine = first + warp * Of::QUERIES + lane / 4;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int position = offset + mine + tile * 16 + half * 8;
            attention.first_seen[tile][half] = rule.first_seen(position);
            attention.end_seen[tile][half] = position + 1;
        }
    int from = rule.first_seen(offset + first) / BN, last = offset + min(first + of_block, rows);
    int of_warp = offset + first + warp * Of::QUERIES;
    attention.walk(shared, keys, rule, from, (last + BN - 1) / BN, rule.first_seen(of_warp), of_warp + Of::QUERIES,
                   [](int, const float (&)[TILES][BN / 8][4]) {});
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = mine + tile * 16 + half * 8;
            float total = sum_of_four(attention.sum[tile][half]);
            if (row >= rows) continue;
            if (sinks) total += power(sinks[head] * LOG2E - attention.max[tile][half]);
            float by = 1.0f / total;
            T *to = out + ((int64_t)row * heads + head) * d;
#pragma unroll
            for (int i = 0; i < D / 8; i++) {
                int column = i * 8 + lane % 4 * 2;
                if (column < d)
                    *reinterpret_cast<uint32_t *>(to + column) =
                        pair<T>(attention.out[tile][i][2 * half] * by, attention.out[tile][i][2 * half + 1] * by);
            }
        }
}

// Where the sums of weights by segment go: pieces are what borders and the starts of key blocks cut the keys into, in order.
// A border at such a start leaves an empty piece before it, so that the piece that begins at x is number
// x / BN - first_block + (borders up to x).
struct Pieces {
    const unsigned *borders;    // ascending, after the start of the first block; null where nobody asks
    int count, first_block;
    Ends *ends;                 // [pieces][rows][heads]
};

// The first border after `position`.
__device__ int borders_up_to(const Pieces &pieces, int position) {
    int from = 0, to = pieces.count;
    while (from < to) {
        int middle = (from + to) / 2;
        if ((int)pieces.borders[middle] <= position)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

// One query of each of several rows over a part of the keys: thread blocks are (part, 16 rows a warp, kv head), and a row counts
// for each of the heads of a group. Parts of no keys are written too.
template <typename T, int D, int BN>
__device__ void split(const T *q, int64_t q_row, int64_t q_head, const T *k, int64_t k_head, const T *v, int64_t v_head, int d,
                      int group, int rows, const unsigned *positions, int position, int first_key, int count, int first_part,
                      Rule rule, int wide, int slot, int row_slot, int all_rows, float *sums, Ends *ends, Pieces pieces) {
    Attention<T, D, BN, 0, 1> attention;
    int kv_head = blockIdx.z, heads = gridDim.z * group, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int tile = blockDim.x / 2, first = blockIdx.y * tile;
    q += kv_head * group * q_head;
    Keys<T> keys = {k + kv_head * k_head, v + kv_head * v_head, first_key, count, d, wide != 0};
    uint32_t shared = attention.begin(shared_address(SHARED), d, wide, q, [&](int row) {
        int packed = first + row;
        return packed < rows * group ? q + packed / group * q_row + packed % group * q_head : nullptr;
    });
    // Where each of this lane's two rows goes among all rows' heads; below 0 if there is none.
    int64_t to[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int packed = first + warp * 16 + lane / 4 + half * 8, row = packed / group;
        bool is_one = row < rows;
        int at = is_one && positions ? (int)positions[row] : position;
        attention.first_seen[0][half] = rule.first_seen(at);
        attention.end_seen[0][half] = min(at + 1, first_key + count);
        to[half] = is_one ? (int64_t)(row_slot + row) * heads + kv_head * group + packed % group : -1;
    }
    int start = (first_part + blockIdx.x) * PART, end = min(start + PART, first_key + count);
    int64_t step = (int64_t)all_rows * heads;
    attention.walk(shared, keys, rule, max(start, first_key) / BN, (end + BN - 1) / BN, 0, INT32_MAX,
                   [&](int block, const float (&weights)[1][BN / 8][4]) {
        if (!pieces.borders) return;
        int at = max(block * BN, first_key), stop = min((block + 1) * BN, end);
        int next = borders_up_to(pieces, at), number = block - pieces.first_block + next;
        // The empty piece before a border at the block's start.
        bool empty = next > 0 && at == block * BN && (int)pieces.borders[next - 1] == at;
        for (; at < stop; number++, next++) {
            int until = next < pieces.count ? min((int)pieces.borders[next], stop) : stop;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float sum = 0;
#pragma unroll
                for (int i = 0; i < BN / 8; i++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        int key = block * BN + i * 8 + lane % 4 * 2 + j;
                        if (key >= at && key < until) sum += weights[0][i][2 * half + j];
                    }
                sum = sum_of_four(sum);
                if (to[half] >= 0 && lane % 4 == 0) {
                    pieces.ends[number * step + to[half]] = {attention.max[0][half], sum};
                    if (empty) pieces.ends[(number - 1) * step + to[half]] = {-INFINITY, 0};
                }
            }
            empty = false;
            at = until;
        }
    });
    int64_t part = slot + blockIdx.x;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = sum_of_four(attention.sum[0][half]);
        if (to[half] < 0) continue;
        int64_t row = part * step + to[half];
        if (lane % 4 == 0) ends[row] = {attention.max[0][half], total};
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            int column = i * 8 + lane % 4 * 2;
            if (column < d)
                *reinterpret_cast<float2 *>(sums + row * d + column) =
                    make_float2(attention.out[0][i][2 * half], attention.out[0][i][2 * half + 1]);
        }
    }
}

constexpr int JOINING = 8;  // warps

// The parts of each row and head as one, a thread block of JOINING warps each: every JOININGth part of the sequence is a warp's.
template <typename T>
__device__ void join(const float *sums, const Ends *ends, int parts, int first_part, int d, int heads, const float *sinks,
                     T *out) {
    __shared__ float of_warps[JOINING][256];
    __shared__ Ends ends_of_warps[JOINING];
    int64_t row = blockIdx.x, rows = gridDim.x;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float mine[8] = {};
    Ends all = {-INFINITY, 0};
    for (int part = (warp + JOINING - first_part % JOINING) % JOINING; part < parts; part += JOINING) {
        Ends here = ends[part * rows + row];
        if (here.sum == 0) continue;
        float max = fmaxf(all.max, here.max), old = power(all.max - max), factor = power(here.max - max);
        all = {max, all.sum * old + here.sum * factor};
        const float *from = sums + (part * rows + row) * d;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int column = i * 32 + lane;
            if (column < d) mine[i] = mine[i] * old + from[column] * factor;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) of_warps[warp][i * 32 + lane] = mine[i];
    if (lane == 0) ends_of_warps[warp] = all;
    __syncthreads();
    float max = -INFINITY, total = 0;
    for (int i = 0; i < JOINING; i++) max = fmaxf(max, ends_of_warps[i].max);
    for (int i = 0; i < JOINING; i++) total += ends_of_warps[i].sum * power(ends_of_warps[i].max - max);
    if (sinks) total += power(sinks[row % heads] * LOG2E - max);
    for (int column = threadIdx.x; column < d; column += blockDim.x) {
        float sum = 0;
        for (int i = 0; i < JOINING; i++) sum += of_warps[i][column] * power(ends_of_warps[i].max - max);
        out[row * d + column] = static_cast<T>(sum / total);
    }
}

}  // namespace

// BLOCKS: how many thread blocks a multiprocessor is to hold at least, for which the compiler spares registers. Kernels of a KIND need
// less shared memory than the others of their width: prefill.rs knows how much.
#define PREFILL(T, NAME, KIND, D, BN, THREADS, TILES, BLOCKS)                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention_prefill_##NAME##_##D##KIND(                          \
        const T *q, int64_t q_row, int64_t q_head, const T *k, int64_t k_head, const T *v, int64_t v_head, int d, int group,     \
        int rows, int offset, int first_key, int count, float unit, float inner, float cap, int window, int wide,                \
        const float *sinks, T *out) {                                                                                            \
        prefill<T, D, BN, THREADS, TILES>(q, q_row, q_head, k, k_head, v, v_head, d, group, rows, offset, first_key, count,      \
                                          Rule{unit, inner, cap, window}, wide, sinks, out);                                     \
    }

#define SPLIT(T, NAME, D, BN, BLOCKS)                                                                                            \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS) attention_split_##NAME##_##D(                                      \
        const T *q, int64_t q_row, int64_t q_head, const T *k, int64_t k_head, const T *v, int64_t v_head, int d, int group,     \
        int rows, const unsigned *positions, int position, int first_key, int count, int first_part, float unit, float inner,    \
        float cap, int window, int wide, int slot, int row_slot, int all_rows, float *sums, Ends *ends, const unsigned *borders, \
        int border_count, int first_block, Ends *pieces) {                                                                       \
        split<T, D, BN>(q, q_row, q_head, k, k_head, v, v_head, d, group, rows, positions, position, first_key, count,           \
                        first_part, Rule{unit, inner, cap, window}, wide, slot, row_slot, all_rows, sums, ends,                  \
                        Pieces{borders, border_count, first_block, pieces});                                                     \
    }

#define KERNELS(T, NAME)                                                                                                         \
    PREFILL(T, NAME, , 64, 64, 256, 1, 2)                                                                                        \
    PREFILL(T, NAME, , 80, 64, 256, 1, 2)                                                                                        \
    PREFILL(T, NAME, , 96, 64, 128, 2, 2)                                                                                        \
    PREFILL(T, NAME, , 128, 64, 256, 2, 1)                                                                                       \
    PREFILL(T, NAME, _small, 128, 64, 256, 1, 1)                                                                                 \
    PREFILL(T, NAME, , 256, 32, 256, 1, 1)                                                                                       \
    PREFILL(T, NAME, _small, 256, 32, 128, 1, 1)                                                                                 \
    SPLIT(T, NAME, 64, 64, 3)                                                                                                    \
    SPLIT(T, NAME, 128, 32, 1)                                                                                                   \
    SPLIT(T, NAME, 256, 32, 1)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * JOINING)                                                                   \
        attention_join_##NAME(const float *sums, const Ends *ends, int parts, int first_part, int d, int heads,                  \
                              const float *sinks, T *out) {                                                                      \
        join<T>(sums, ends, parts, first_part, d, heads, sinks, out);                                                            \
    }

KERNELS(__half, f16)
KERNELS(__nv_bfloat16, bf16)
