// Prefill attention of f16 and bf16 by Hopper's warpgroup products, for sm_90a alone; what it computes, its parameters and the order
// of its sums by blocks of keys are those of attention_prefill in attention.cu.
//
// A warpgroup has 64 queries. While its tensor cores add the values of a block of keys, and score the next block, its other units
// turn the scores of that next block into weights, as soon as these are there: FlashAttention-3's pipeline within a warpgroup. Two
// warpgroups share each block of keys, and one computes weights while the other's products run.
//
// Tiles come by `cp.async`, 16 bytes a thread, swizzled by hand, and not by the tensor memory accelerator: its tensor maps would have
// to be encoded by the host through the driver for every tensor of every call, and bulk copies wait on barriers in shared memory with
// phases. What that costs is the instructions of the copies, 16 a thread and block of keys.

#include "tensor_cores.cuh"
#include "warpgroup.cuh"

namespace {

template <int LEFT> __device__ void copies_wait_but() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// Heads of up to D numbers, keys in blocks of BN, GROUPS warpgroups.
template <typename T, int D, int BN, int GROUPS> struct Hopper {
    static constexpr int THREADS = 128 * GROUPS, QUERIES = 64 * GROUPS;
    // Values of a row that one product takes.
    static constexpr int WIDTH = D < 128 ? D : 128;
    // Bytes of the queries, and of a block of keys or of values.
    static constexpr int QUERY_TILE = QUERIES * D * 2, TILE = BN * D * 2;

    float out[D / WIDTH][WIDTH / 2];
    // Weights of the block of keys whose values come next, in the values' type.
    uint32_t weights[BN / 16][4];
    // Queries `lane / 4`, at `position`, and `lane / 4 + 8` of the warp; the sums cover this lane's keys.
    float max[2], sum[2];
    int position;
    // Descriptors of the warpgroup's queries, and of the first of two tiles of keys and of values.
    uint64_t queries, keys, values;

    // ROWS rows of `d` numbers from row `first` of `rows` on to a tile; rows outside of 0..count and numbers after `d` are zeros.
    template <int ROWS> static __device__ void fetch(uint32_t tile, const T *rows, int64_t stride, int first, int count, int d) {
        constexpr int UNITS = D / 8, STEP = THREADS / UNITS;
        static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "a thread's rows are alike in the swizzle, and each has as many");
        int unit = threadIdx.x % UNITS, row = threadIdx.x / UNITS;
        uint32_t place = tile + place_in_tile<ROWS>(row, unit);
        bool inside = unit * 8 < d;
        const T *column = rows + (inside ? unit * 8 : 0);
#pragma unroll
        for (int i = 0; i < ROWS; i += STEP) {
            // A row that is not there is another one, of which nothing is read: a choice of addresses would be a branch.
            int at = first + row + i, near = min(::max(at, 0), count - 1);
            copy16(place + i * CHUNK_ROW, column + near * stride, inside && at == near ? 16 : 0);
        }
    }

    // The same for rows that begin at multiples of 8 bytes, which are rare.
    template <int ROWS>
    static __device__ void fetch_narrow(uint32_t tile, const T *rows, int64_t stride, int first, int count, int d) {
        constexpr int UNITS = D / 4;
#pragma unroll 1
        for (int i = threadIdx.x; i < ROWS * UNITS; i += THREADS) {
            int unit = i % UNITS, row = i / UNITS;
            bool is_there = unit * 4 < d && unsigned(first + row) < unsigned(count);
            copy8(tile + place_in_tile<ROWS>(row, unit / 2) + unit % 2 * 8, is_there ? rows + (first + row) * stride + unit * 4 : rows,
                  is_there ? 8 : 0);
        }
    }

    // Scores of a block of keys, in tile 0 or 1.
    __device__ void score(float (&scores)[BN / 2], int tile) {
        uint64_t block = keys + tile * (TILE / 16);
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            int chunk = step / 4, within = step % 4 * 2;
            uint64_t a = queries + chunk * (QUERIES * CHUNK_ROW / 16) + within;
            uint64_t b = block + chunk * (BN * CHUNK_ROW / 16) + within;
            if (step == 0)
                Product<T, BN>::template of_tiles<false>(scores, a, b);
            else
                Product<T, BN>::template of_tiles<true>(scores, a, b);
        }
    }

    // Adds the values of a block, in tile 0 or 1, by `weights`.
    __device__ void gather(int tile) {
        uint64_t block = values + tile * (TILE / 16);
#pragma unroll
        for (int step = 0; step < BN / 16; step++)
#pragma unroll
            for (int part = 0; part < D / WIDTH; part++)
                Product<T, WIDTH>::of_registers(out[part], weights[step],
                                                block + part * (WIDTH / CHUNK * BN * CHUNK_ROW / 16) + step * (16 * CHUNK_ROW / 16));
    }

    // Scores of the keys from position `first` on become weights relative to the greatest score up to here; `factor` is by how much
    // the earlier weights must be scaled for that.
    __device__ void weigh(float (&scores)[BN / 2], float (&factor)[2], const Rule &rule, int first) {
        if (rule.cap > 0) {
#pragma unroll
            for (int i = 0; i < BN / 2; i++) scores[i] = capped(scores[i], rule);
        }
        int column = first + threadIdx.x % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int ends = position + half * 8 + 1, begins = rule.first_seen(ends - 1);
            if (first < begins || first + BN > ends) {
#pragma unroll
                for (int i = 0; i < BN / 8; i++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        int key = column + i * 8 + j;
                        if (key < begins || key >= ends) scores[4 * i + 2 * half + j] = -INFINITY;
                    }
            }
            float most = -INFINITY;
#pragma unroll
            for (int i = 0; i < BN / 8; i++) most = fmaxf(most, fmaxf(scores[4 * i + 2 * half], scores[4 * i + 2 * half + 1]));
            float now = fmaxf(max[half], max_of_four(most) * rule.unit);
            // Before anything has been seen there is nothing to scale, and minus infinity less itself is no number.
            float base = now == -INFINITY ? 0.0f : now, added = 0;
            factor[half] = power(max[half] - base);
            max[half] = now;
#pragma unroll
            for (int i = 0; i < BN / 8; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float weight = power(fmaf(scores[4 * i + 2 * half + j], rule.unit, -base));
                    scores[4 * i + 2 * half + j] = weight;
                    added += weight;
                }
            sum[half] = fmaf(sum[half], factor[half], added);
        }
    }

    // Two neighbouring 16 x 8 pieces of scores are a 16 x 16 factor.
    __device__ void pack(const float (&scores)[BN / 2]) {
#pragma unroll
        for (int step = 0; step < BN / 16; step++)
#pragma unroll
            for (int i = 0; i < 4; i++) weights[step][i] = pair<T>(scores[8 * step + 2 * i], scores[8 * step + 2 * i + 1]);
    }

    __device__ void scale(const float (&factor)[2]) {
        // Far into a prompt the greatest scores seldom change, and a factor of 1 changes no bit.
        if (__any_sync(~0u, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
            for (int part = 0; part < D / WIDTH; part++)
#pragma unroll
                for (int i = 0; i < WIDTH / 2; i++) out[part][i] *= factor[i / 2 % 2];
        }
    }

    __device__ void pin_out() {
#pragma unroll
        for (int part = 0; part < D / WIDTH; part++) pin(out[part]);
    }
    // In front of products of the weights, and behind them.
    __device__ void pin_gathered() {
        pin_out();
#pragma unroll
        for (int step = 0; step < BN / 16; step++) pin(weights[step]);
    }
};

extern __shared__ uint4 SHARED[];

// A thread block a head and 64 queries a warpgroup; those that see most come first.
template <typename T, int D, int BN, int GROUPS>
__device__ void prefill(const T *q, int64_t q_row, int64_t q_head, const T *k, int64_t k_head, const T *v, int64_t v_head, int d,
                        int group, int rows, int offset, int first_key, int count, Rule rule, int wide, const float *sinks,
                        T *out) {
    using Of = Hopper<T, D, BN, GROUPS>;
    Of of;
    int head = blockIdx.y, heads = gridDim.y, lane = threadIdx.x % 32;
    int first = (gridDim.x - 1 - blockIdx.x) * Of::QUERIES;
    // The same in all threads of a warp, which the compiler cannot know by itself.
    int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    q += head * q_head;
    k += head / group * k_head;
    v += head / group * v_head;
    int from = rule.first_seen(offset + first) / BN, to = (offset + min(first + Of::QUERIES, rows) + BN - 1) / BN;

    uint32_t shared = (shared_address(SHARED) + PATTERN - 1) / PATTERN * PATTERN;
    uint32_t keys = shared + Of::QUERY_TILE, values = keys + 2 * Of::TILE;
    of.queries = descriptor(shared + warp / 4 * (64 * CHUNK_ROW), 0);
    of.keys = descriptor(keys, 0);
    of.values = descriptor(values, BN * CHUNK_ROW);
    auto fetch = [&](uint32_t tiles, const T *rows, int block) {
        if (block < to) Of::template fetch<BN>(tiles + (block - from) % 2 * Of::TILE, rows, d, block * BN - first_key, count, d);
    };
    auto fetch_narrow = [&](uint32_t tiles, const T *rows, int block) {
        if (block < to)
            Of::template fetch_narrow<BN>(tiles + (block - from) % 2 * Of::TILE, rows, d, block * BN - first_key, count, d);
    };

    int mine = first + warp * 16 + lane / 4;
    of.position = offset + mine;
    of.max[0] = of.max[1] = -INFINITY;
    of.sum[0] = of.sum[1] = 0;
#pragma unroll
    for (int part = 0; part < D / Of::WIDTH; part++)
#pragma unroll
        for (int i = 0; i < Of::WIDTH / 2; i++) of.out[part][i] = 0;

    if (wide) {
        Of::template fetch<Of::QUERIES>(shared, q, q_row, first, rows, d);
        fetch(keys, k, from);
        copies_commit();
        fetch(keys, k, from + 1);
        fetch(values, v, from);
        copies_commit();
        copies_wait_but<1>();
    } else {
        Of::template fetch_narrow<Of::QUERIES>(shared, q, q_row, first, rows, d);
        fetch_narrow(keys, k, from);
        fetch_narrow(keys, k, from + 1);
        fetch_narrow(values, v, from);
        copies_commit();
        copies_wait();
    }
    publish();
    __syncthreads();

    float scores[BN / 2], factor[2];
    pin(scores);
    group_fence();
    of.score(scores, 0);
    group_commit();
    group_wait<0>();
    pin(scores);
    of.weigh(scores, factor, rule, from * BN);
    of.pack(scores);

    for (int block = from; block + 1 < to; block++) {
        // The next keys and this block's values are there, and no warp uses this block's keys or the values before any more.
        copies_wait();
        publish();
        __syncthreads();
        pin(scores);
        of.pin_gathered();
        group_fence();
        of.score(scores, (block + 1 - from) % 2);
        group_commit();
        of.gather((block - from) % 2);
        group_commit();
        if (wide) {
            fetch(keys, k, block + 2);
            fetch(values, v, block + 1);
        }
        group_wait<1>();
        pin(scores);
        of.weigh(scores, factor, rule, (block + 1) * BN);
        group_wait<0>();
        of.pin_gathered();
        of.scale(factor);
        of.pack(scores);
        // A loop, which must not lie between products and their wait: these would wait for each other.
        if (!wide) {
            fetch_narrow(keys, k, block + 2);
            fetch_narrow(values, v, block + 1);
        }
        copies_commit();
    }
    copies_wait();
    publish();
    __syncthreads();
    of.pin_gathered();
    group_fence();
    of.gather((to - 1 - from) % 2);
    group_commit();
    group_wait<0>();
    of.pin_gathered();

#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = mine + half * 8;
        float total = sum_of_four(of.sum[half]);
        if (row >= rows) continue;
        if (sinks) total += power(sinks[head] * LOG2E - of.max[half]);
        float by = 1.0f / total;
        T *line = out + ((int64_t)row * heads + head) * d;
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            int column = i * 8 + lane % 4 * 2;
            const float *sums = of.out[i * 8 / Of::WIDTH] + i * 8 % Of::WIDTH / 2 + 2 * half;
            if (column < d) *reinterpret_cast<uint32_t *>(line + column) = pair<T>(sums[0] * by, sums[1] * by);
        }
    }
}

}  // namespace

// Parameters are those of PREFILL in attention.cu.
#define HOPPER(T, NAME, D, BN, GROUPS)                                                                                           \
    extern "C" __global__ void __launch_bounds__(128 * GROUPS, 1) attention_hopper_##NAME##_##D(                                 \
        const T *q, int64_t q_row, int64_t q_head, const T *k, int64_t k_head, const T *v, int64_t v_head, int d, int group,     \
        int rows, int offset, int first_key, int count, float unit, float inner, float cap, int window, int wide,               \
        const float *sinks, T *out) {                                                                                            \
        prefill<T, D, BN, GROUPS>(q, q_row, q_head, k, k_head, v, v_head, d, group, rows, offset, first_key, count,              \
                                  Rule{unit, inner, cap, window}, wide, sinks, out);                                             \
    }

#define KERNELS(T, NAME)                                                                                                         \
    HOPPER(T, NAME, 64, 128, 2)                                                                                                  \
    HOPPER(T, NAME, 128, 128, 2)                                                                                                 \
    HOPPER(T, NAME, 256, 64, 2)

KERNELS(__half, f16)
KERNELS(__nv_bfloat16, bf16)
