// Kernels of the gated delta rule and of its implicit attention (src/model/layers/delta_rule.rs, src/attention/delta.rs), part of
// fused.cu. All tensors are contiguous and f32.

namespace {

// Tokens of a block of the rule, columns of its state that a thread block computes, and rows of implicit attention.
constexpr int TOKENS = 64, COLUMNS = 32, ROWS = 32;
// Elements between rows of a block in shared memory: rows begin at 16 bytes, and eight of them lie in different banks.
constexpr int PITCH = TOKENS + 4;
// Threads of each of these kernels: 16 rows by 16 columns of tiles. Two thread blocks a multiprocessor leave registers for these.
constexpr int THREADS = 256;

// 64 columns from `first` on of 64 rows `stride` elements apart, of which `count` rows and `width` columns exist; the rest is 0. Each
// row times its factor, if there are any.
__device__ void stage(const float *rows, long long stride, int count, int first, int width, const float *factors, float *to) {
    for (int i = threadIdx.x; i < TOKENS * TOKENS; i += THREADS) {
        int row = i / TOKENS, column = first + i % TOKENS;
        float x = row < count && column < width ? rows[row * stride + column] : 0.0f;
        to[row * PITCH + i % TOKENS] = factors ? x * factors[row] : x;
    }
}

// Four elements that lie together, at 16 bytes.
struct Four {
    float x[4];
    __device__ explicit Four(const float *at) {
        float4 all = *reinterpret_cast<const float4 *>(at);
        x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
    }
};

// Adds dot products of 64 elements to a thread's tile: its rows of `left` are 16 apart, as are those of `right`, the columns.
template <int M>
__device__ void dots(const float *left, int pitch, const float *right, float (&sum)[M][4]) {
    for (int i = 0; i < TOKENS; i += 4) {
        Four b[4] = {Four(right + i), Four(right + 16 * PITCH + i), Four(right + 32 * PITCH + i), Four(right + 48 * PITCH + i)};
#pragma unroll
        for (int m = 0; m < M; m++) {
            Four a(left + 16 * m * pitch + i);
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[m][n] += a.x[j] * b[n].x[j];
        }
    }
}

// Adds 64 rows of `right` times elements of `left` to a thread's tile: its rows of `left` are 16 apart, its 4 columns lie together.
template <int M>
__device__ void combined(const float *left, const float *right, float (&sum)[M][4]) {
    for (int i = 0; i < TOKENS; i += 4) {
        Four b[4] = {Four(right + i * PITCH), Four(right + (i + 1) * PITCH), Four(right + (i + 2) * PITCH), Four(right + (i + 3) * PITCH)};
#pragma unroll
        for (int m = 0; m < M; m++) {
            Four a(left + 16 * m * PITCH + i);
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[m][n] += a.x[j] * b[j].x[n];
        }
    }
}

// Adds 64 rows of `inner` elements, of which `count` rows exist, times `right`, (inner, COLUMNS) in shared memory, to a thread's tile:
// its rows are 16 apart, its columns lie together. `block` is scratch.
__device__ void product(const float *left, long long stride, int count, int inner, const float *right, float *block,
                        float (&sum)[4][2]) {
    int row = threadIdx.x / 16, column = threadIdx.x % 16 * 2;
    for (int at = 0; at < inner; at += TOKENS) {
        __syncthreads();
        stage(left, stride, count, at, inner, nullptr, block);
        __syncthreads();
        for (int i = 0; i < TOKENS; i += 4) {
            Four a[4] = {Four(block + row * PITCH + i), Four(block + (row + 16) * PITCH + i), Four(block + (row + 32) * PITCH + i),
                         Four(block + (row + 48) * PITCH + i)};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float2 b = *reinterpret_cast<const float2 *>(right + (at + i + j) * COLUMNS + column);
#pragma unroll
                for (int m = 0; m < 4; m++) {
                    sum[m][0] += a[m].x[j] * b.x;
                    sum[m][1] += a[m].x[j] * b.y;
                }
            }
        }
    }
}

// Results of `delta_blocks` for a block of tokens and a value head: all that does not depend on the state.
struct Block {
    // e^(G_i), then e^(G_last - G_i); the inverse; and e^(G_i - G_j), times q_i . k_j for the rule.
    const float *from_start, *to_end, *transform, *pairwise;
    __device__ Block(const float *ends, const float *transforms, const float *pairs, long long block) {
        long long at = block * gridDim.y + blockIdx.y;
        from_start = ends + at * 2 * TOKENS;
        to_end = from_start + TOKENS;
        transform = transforms + at * TOKENS * TOKENS;
        pairwise = pairs + at * TOKENS * TOKENS;
    }
};

__device__ unsigned key_head(unsigned key_heads) { return blockIdx.y / (gridDim.y / key_heads); }

}  // namespace

// A block of 64 tokens and a value head a thread block: `ends` gets e^(G_i) and e^(G_last - G_i), `transform` (I + L)^-1 diag(b), and
// `pairwise` e^(G_i - G_j) where j <= i, else 0, times q_i . k_j if there is a `q`. Tokens after the last leave the state unchanged.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    delta_blocks(const float *q, const float *k, const float *g, const float *beta, unsigned l, unsigned key_heads, unsigned width,
                 float *ends, float *transform, float *pairwise) {
    __shared__ __align__(16) float first[TOKENS * PITCH], second[TOKENS * PITCH];
    __shared__ float decays[TOKENS], strengths[TOKENS];
    unsigned head = blockIdx.y, heads = gridDim.y, thread = threadIdx.x;
    long long token = (long long)blockIdx.x * TOKENS, stride = (long long)key_heads * width;
    int count = l - token < TOKENS ? l - token : TOKENS;
    if (thread < TOKENS) {
        bool is = thread < count;
        decays[thread] = is ? at_least(g[(token + thread) * heads + head], -1000.0f) : 0.0f;
        strengths[thread] = is ? beta[(token + thread) * heads + head] : 0.0f;
    }

    // 1. Products of keys with keys and of queries with keys.
    long long start = token * stride + key_head(key_heads) * width;
    int row = thread / 16, column = thread % 16;
    float keys[4][4] = {}, queries[4][4] = {};
    for (int at = 0; at < width; at += TOKENS) {
        __syncthreads();
        stage(k + start, stride, count, at, width, nullptr, first);
        if (q) stage(q + start, stride, count, at, width, nullptr, second);
        __syncthreads();
        dots(first + row * PITCH, PITCH, first + column * PITCH, keys);
        if (q) dots(second + row * PITCH, PITCH, first + column * PITCH, queries);
    }
    __syncthreads();

    // 2. Decays. Summed separately for each pair: the difference of two long sums loses accuracy.
    long long at = blockIdx.x * heads + head;
    ends += at * 2 * TOKENS, transform += at * TOKENS * TOKENS, pairwise += at * TOKENS * TOKENS;
    if (thread < TOKENS) {
        float sum = 0, pair = 1;
        for (int i = thread; i < TOKENS; i++) {
            if (i > thread) sum += decays[i], pair = expf(sum);
            second[i * PITCH + thread] = pair;
        }
        ends[TOKENS + thread] = pair;
    } else if (thread < 2 * TOKENS) {
        float sum = 0;
        for (int i = 0; i <= thread - TOKENS; i++) sum += decays[i];
        ends[thread - TOKENS] = expf(sum);
    }
    __syncthreads();

    // 3. The triangle L, in `first`.
    for (int m = 0; m < 4; m++) {
        for (int n = 0; n < 4; n++) {
            int i = row + 16 * m, j = column + 16 * n;
            float pair = j <= i ? second[i * PITCH + j] : 0.0f;
            pairwise[i * TOKENS + j] = j <= i && q ? pair * queries[m][n] : pair;
            first[i * PITCH + j] = j < i ? keys[m][n] * pair * strengths[i] : 0.0f;
        }
    }
    __syncthreads();

    // 4. Its inverse, in `second`, by forward substitution: a column a thread.
    if (thread < TOKENS) {
        for (int i = 0; i < TOKENS; i++) {
            float x = i == thread ? 1.0f : 0.0f;
            for (int j = thread; j < i; j++) x -= first[i * PITCH + j] * second[j * PITCH + thread];
            second[i * PITCH + thread] = x;
        }
    }
    __syncthreads();
    for (int i = thread; i < TOKENS * TOKENS; i += THREADS)
        transform[i] = second[i / TOKENS * PITCH + i % TOKENS] * strengths[i % TOKENS];
}

// The rule from the state `before` (value_heads, key_dim, value_dim) over `l` tokens: COLUMNS columns of a value head's state a thread
// block, which goes from block to block with it in shared memory.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    delta_rule(const float *q, const float *k, const float *v, const float *ends, const float *transform, const float *pairwise,
               const float *before, unsigned l, unsigned key_heads, unsigned key_dim, unsigned value_dim, float *after, float *out) {
    extern __shared__ __align__(16) float memory[];
    int padded = (key_dim + TOKENS - 1) / TOKENS * TOKENS;
    float *state = memory, *block = state + padded * COLUMNS, *written = block + TOKENS * PITCH;
    unsigned head = blockIdx.y, heads = gridDim.y, first = blockIdx.x * COLUMNS;
    int row = threadIdx.x / 16, column = threadIdx.x % 16 * 2;
    long long stride = (long long)key_heads * key_dim;
    for (int i = threadIdx.x; i < padded * COLUMNS; i += THREADS) {
        unsigned r = i / COLUMNS, c = first + i % COLUMNS;
        state[i] = r < key_dim && c < value_dim ? before[((long long)head * key_dim + r) * value_dim + c] : 0.0f;
    }
    for (long long token = 0; token < l; token += TOKENS) {
        Block of(ends, transform, pairwise, token / TOKENS);
        int count = l - token < TOKENS ? l - token : TOKENS;
        long long start = token * stride + key_head(key_heads) * key_dim;

        // 1. What keys and queries read of the state, and so what the tokens write.
        float by_key[4][2] = {}, by_query[4][2] = {}, writes[4][2] = {}, outputs[4][2] = {};
        product(k + start, stride, count, key_dim, state, block, by_key);
        product(q + start, stride, count, key_dim, state, block, by_query);
        for (int m = 0; m < 4; m++) {
            for (int n = 0; n < 2; n++) {
                int i = row + 16 * m;
                unsigned c = first + column + n;
                float value = i < count && c < value_dim ? v[((token + i) * heads + head) * value_dim + c] : 0.0f;
                written[i * COLUMNS + column + n] = value - of.from_start[i] * by_key[m][n];
            }
        }
        product(of.transform, TOKENS, TOKENS, TOKENS, written, block, writes);
        __syncthreads();
        for (int m = 0; m < 4; m++)
            for (int n = 0; n < 2; n++) written[(row + 16 * m) * COLUMNS + column + n] = writes[m][n];

        // 2. Outputs.
        product(of.pairwise, TOKENS, TOKENS, TOKENS, written, block, outputs);
        for (int m = 0; m < 4; m++) {
            for (int n = 0; n < 2; n++) {
                int i = row + 16 * m;
                unsigned c = first + column + n;
                if (i < count && c < value_dim)
                    out[((token + i) * heads + head) * value_dim + c] = of.from_start[i] * by_query[m][n] + outputs[m][n];
            }
        }

        // 3. The state: a thread's 4 rows lie together.
        float kept = of.from_start[TOKENS - 1];
        for (int at = 0; at < key_dim; at += TOKENS) {
            __syncthreads();
            stage(k + start, stride, count, at, key_dim, of.to_end, block);
            __syncthreads();
            float sum[4][2] = {};
            for (int i = 0; i < TOKENS; i++) {
                Four a(block + i * PITCH + 4 * row);
                float2 b = *reinterpret_cast<const float2 *>(written + i * COLUMNS + column);
#pragma unroll
                for (int m = 0; m < 4; m++) {
                    sum[m][0] += a.x[m] * b.x;
                    sum[m][1] += a.x[m] * b.y;
                }
            }
            for (int m = 0; m < 4; m++) {
                for (int n = 0; n < 2; n++) {
                    float *x = &state[(at + 4 * row + m) * COLUMNS + column + n];
                    *x = kept * *x + sum[m][n];
                }
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < key_dim * COLUMNS; i += THREADS) {
        unsigned r = i / COLUMNS, c = first + i % COLUMNS;
        if (c < value_dim) after[((long long)head * key_dim + r) * value_dim + c] = state[i];
    }
}

// The rule for one token; COLUMNS columns of a value head's state a thread block, each warp with an eighth of its rows.
extern "C" __global__ void __launch_bounds__(THREADS)
    delta_step(const float *q, const float *k, const float *v, const float *g, const float *beta, const float *before,
               unsigned key_heads, unsigned key_dim, unsigned value_dim, float *after, float *out) {
    __shared__ float parts[2][THREADS / COLUMNS][COLUMNS];
    unsigned head = blockIdx.y, lane = threadIdx.x % COLUMNS, part = threadIdx.x / COLUMNS;
    unsigned column = blockIdx.x * COLUMNS + lane;
    bool lies = column < value_dim;
    q += key_head(key_heads) * key_dim, k += key_head(key_heads) * key_dim;
    long long start = (long long)head * key_dim * value_dim + column;
    float decay = expf(g[head]), sum = 0;
    for (unsigned i = part; lies && i < key_dim; i += THREADS / COLUMNS) sum += k[i] * before[start + i * value_dim];
    parts[0][part][lane] = sum;
    __syncthreads();
    float held = 0;
    for (int i = 0; i < THREADS / COLUMNS; i++) held += parts[0][i][lane];
    float written = lies ? beta[head] * (v[head * value_dim + column] - decay * held) : 0.0f;
    sum = 0;
    for (unsigned i = part; lies && i < key_dim; i += THREADS / COLUMNS) {
        float x = decay * before[start + i * value_dim] + k[i] * written;
        after[start + i * value_dim] = x;
        sum += q[i] * x;
    }
    parts[1][part][lane] = sum;
    __syncthreads();
    if (part || !lies) return;
    sum = 0;
    for (int i = 0; i < THREADS / COLUMNS; i++) sum += parts[1][i][lane];
    out[head * value_dim + column] = sum;
}

// Implicit attention over the tokens `first`..`first` + `l`, from the last block back: ROWS rows of a value head a thread block. The
// rows are at positions from `first_row` on; `w` (value_heads, rows, width), their queries at first, is what is left of them. `sums`
// (2, places, value_heads, rows) gets the weights and their sizes added by segment; borders[i]..borders[i + 1] is the i-th, and keys
// outside all of them go to the last place.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    delta_rows(const float *k, const float *ends, const float *transform, const float *pairwise, const unsigned *borders,
               unsigned places, unsigned first, unsigned l, unsigned first_row, unsigned rows, unsigned key_heads, unsigned width,
               float *w, float *sums) {
    extern __shared__ __align__(16) float memory[];
    int padded = (width + TOKENS - 1) / TOKENS * TOKENS, pitch = padded + 4;
    float *left = memory, *block = left + ROWS * pitch, *weights = block + TOKENS * PITCH;
    unsigned head = blockIdx.y, heads = gridDim.y, tile = blockIdx.x * ROWS;
    int here = rows - tile < ROWS ? rows - tile : ROWS;
    int row = threadIdx.x / 16, column = threadIdx.x % 16;
    long long stride = (long long)key_heads * width;
    w += ((long long)head * rows + tile) * width;
    for (int i = threadIdx.x; i < ROWS * padded; i += THREADS) {
        int r = i / padded, c = i % padded;
        left[r * pitch + c] = r < here && c < width ? w[(long long)r * width + c] : 0.0f;
    }
    for (int n = (l - 1) / TOKENS; n >= 0; n--) {
        Block of(ends, transform, pairwise, n);
        int at = first + n * TOKENS, count = first + l - at < TOKENS ? first + l - at : TOKENS;
        // The rows' positions in the block: before it if negative, and after it if not less than its length.
        int begin = (int)(first_row + tile) - at;
        if (begin + here <= 0) continue;
        const float *keys = k + (long long)n * TOKENS * stride + key_head(key_heads) * width;

        // 1. Weights of the block: products with the keys, decayed, times the inverse. A row inside the block sees it up to itself.
        float x[2][4] = {}, y[2][4] = {};
        for (int slice = 0; slice < width; slice += TOKENS) {
            __syncthreads();
            stage(keys, stride, count, slice, width, nullptr, block);
            __syncthreads();
            dots(left + row * pitch + slice, pitch, block + column * PITCH, x);
        }
        for (int m = 0; m < 2; m++) {
            for (int i = 0; i < 4; i++) {
                int r = row + 16 * m, key = column + 16 * i, own = min(begin + r, TOKENS - 1);
                bool sees = r < here && key <= own;
                weights[r * PITCH + key] = sees ? x[m][i] * of.pairwise[own * TOKENS + key] : 0.0f;
            }
        }
        __syncthreads();
        stage(of.transform, TOKENS, TOKENS, 0, TOKENS, nullptr, block);
        __syncthreads();
        combined(weights + row * PITCH, block + 4 * column, y);
        __syncthreads();
        for (int m = 0; m < 2; m++)
            for (int i = 0; i < 4; i++) weights[(row + 16 * m) * PITCH + 4 * column + i] = y[m][i];
        __syncthreads();

        // 2. Sums by segment: eight threads a row.
        int r = threadIdx.x / 8, part = threadIdx.x % 8;
        for (int key = 0; key < count;) {
            unsigned low = 0, high = places;
            while (low < high) {
                unsigned middle = (low + high) / 2;
                if (borders[middle] <= at + key) low = middle + 1;
                else high = middle;
            }
            int end = low < places ? min(count, (int)borders[low] - at) : count;
            unsigned place = low > 0 && low < places ? low - 1 : places - 1;
            float sum = 0, size = 0;
            for (int i = key + part; i < end; i += 8) {
                float weight = weights[r * PITCH + i];
                sum += weight, size += fabsf(weight);
            }
            for (int by = 4; by > 0; by /= 2) sum = Sum()(sum, Sum().shuffled(sum, by)), size = Sum()(size, Sum().shuffled(size, by));
            if (part == 0 && r < here) {
                long long to = ((long long)place * heads + head) * rows + tile + r;
                sums[to] += sum;
                sums[(long long)places * heads * rows + to] += size;
            }
            key = end;
        }

        // 3. What is left of the rows for earlier keys.
        if (at == 0) break;
        for (int slice = 0; slice < width; slice += TOKENS) {
            __syncthreads();
            stage(keys, stride, count, slice, width, of.from_start, block);
            __syncthreads();
            float taken[2][4] = {};
            combined(weights + row * PITCH, block + 4 * column, taken);
            for (int m = 0; m < 2; m++) {
                int own = min(begin + row + 16 * m, TOKENS - 1);
                float kept = own < 0 ? 1.0f : of.from_start[own];
                for (int i = 0; i < 4; i++) {
                    float *to = &left[(row + 16 * m) * pitch + slice + 4 * column + i];
                    *to = kept * *to - taken[m][i];
                }
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * padded; i += THREADS) {
        int r = i / padded, c = i % padded;
        if (r < here && c < width) w[(long long)r * width + c] = left[r * pitch + c];
    }
}
