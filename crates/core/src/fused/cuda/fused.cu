// Kernels of `src/fused`: what Candle has in several.
//
// All tensors are contiguous. Arithmetic is in f32; half precision is read and, rounded once, written.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

// Stands for minus infinity (src/fused/softmax.rs).
constexpr float HIDDEN = -1e30f;
// The widest head that is normalised and rotated in one go (src/fused/cuda/mod.rs).
constexpr unsigned WIDEST = 1024;

__device__ float number(float x) { return x; }
__device__ float number(__half x) { return __half2float(x); }
__device__ float number(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T> __device__ T rounded(float x);
template <> __device__ float rounded<float>(float x) { return x; }
template <> __device__ __half rounded<__half>(float x) { return __float2half_rn(x); }
template <> __device__ __nv_bfloat16 rounded<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// What has been seen of a row of scores: the greatest, and the sum of e^(score - max).
struct Ends {
    float max, sum;
};

struct Joined {
    __device__ Ends operator()(Ends a, Ends b) const {
        float max = fmaxf(a.max, b.max);
        return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
    }
    __device__ Ends shuffled(Ends x, int by) const {
        return {__shfl_xor_sync(~0u, x.max, by), __shfl_xor_sync(~0u, x.sum, by)};
    }
};

struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
    __device__ float shuffled(float x, int by) const { return __shfl_xor_sync(~0u, x, by); }
};

// All threads' values as one, which every thread gets. Blocks are of whole warps.
template <typename T, typename Join> __device__ T of_block(T mine, Join join) {
    __shared__ T of_warps[32];
    for (int by = 16; by > 0; by /= 2) mine = join(mine, join.shuffled(mine, by));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = of_warps[0];
    for (int warp = 1; warp < blockDim.x / 32; warp++) mine = join(mine, of_warps[warp]);
    return mine;
}

__device__ float capped(float score, float cap) { return cap > 0 ? cap * tanhf(score / cap) : score; }

// The keys of a block of `n` from `first` on that a row sees: `seen` has where each query's keys start and then where they end,
// absolute; all of them if it is null.
struct Range {
    long long start, end;
};

__device__ Range visible(const unsigned *seen, unsigned queries, long long first, long long n, long long row) {
    if (!seen) return {0, n};
    unsigned query = row % queries;
    long long start = seen[query] - first, end = seen[queries + query] - first;
    return {start < 0 ? 0 : start, end > n ? n : end};
}

template <typename T>
__device__ void weights(const float *scores, const unsigned *seen, unsigned queries, long long first, long long n, float cap,
                        const float *greatest, T *out) {
    long long row = blockIdx.x;
    Range range = visible(seen, queries, first, n, row);
    float max = greatest[row];
    long long step = (long long)gridDim.y * blockDim.x;
    for (long long i = (long long)blockIdx.y * blockDim.x + threadIdx.x; i < n; i += step) {
        bool sees = i >= range.start && i < range.end;
        out[row * n + i] = rounded<T>(sees ? expf(capped(scores[row * n + i], cap) - max) : 0.0f);
    }
}

template <typename T>
__device__ void close(const float *values, const float *max, const float *sum, const float *sinks, unsigned queries, unsigned d,
                      T *out) {
    long long row = blockIdx.x;
    unsigned head = row / queries, query = row % queries, heads = gridDim.x / queries;
    float total = sum[row];
    if (sinks) total += expf(sinks[head] - max[row]);
    for (unsigned i = threadIdx.x; i < d; i += blockDim.x)
        out[((long long)query * heads + head) * d + i] = rounded<T>(values[row * d + i] / total);
}

template <typename T>
__device__ void rms_norm(const T *x, const float *factor, unsigned width, float eps, T *out) {
    long long start = (long long)blockIdx.x * width;
    float squares = 0;
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x) squares += number(x[start + i]) * number(x[start + i]);
    float scale = 1.0f / sqrtf(of_block(squares, Sum()) / width + eps);
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x)
        out[start + i] = rounded<T>(number(x[start + i]) * scale * factor[i]);
}

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// An RMS norm of f32 rows, times silu of `z`.
template <typename T>
__device__ void gated_norm(const float *x, const float *factor, const T *z, unsigned width, float eps, T *out) {
    long long start = (long long)blockIdx.x * width;
    float squares = 0;
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x) squares += x[start + i] * x[start + i];
    float scale = 1.0f / sqrtf(of_block(squares, Sum()) / width + eps);
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
        float by = number(z[start + i]);
        out[start + i] = rounded<T>(x[start + i] * scale * factor[i] * (by * sigmoid(by)));
    }
}

// rate * softplus(x + bias), each column with a bias and a rate of its own.
template <typename T>
__device__ void decay(const T *x, const float *bias, const float *rate, unsigned columns, long long n, float *out) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned column = i % columns;
    float y = number(x[i]) + bias[column];
    out[i] = rate[column] * ((y < 0 ? 0 : y) + log1pf(expf(-fabsf(y))));
}

// NaN stays NaN, which fminf and fmaxf would drop.
__device__ float at_most(float x, float limit) { return x > limit ? limit : x; }
__device__ float at_least(float x, float limit) { return x < limit ? limit : x; }

// `kind`: 0 silu, 1 gelu by tanh, 2 clamped (src/fused/mod.rs). The rows of `gate` and `up` begin `stride` elements apart; those of
// `out` are contiguous.
template <typename T>
__device__ void gated(const T *gate, const T *up, unsigned columns, unsigned rows, long long stride, int kind, float alpha,
                      float limit, T *out) {
    unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    for (long long row = blockIdx.y; row < rows; row += gridDim.y) {
        float g = number(gate[row * stride + column]), u = number(up[row * stride + column]);
        if (kind == 0) {
            g = g * sigmoid(g);
        } else if (kind == 1) {
            g = 0.5f * g * (1.0f + tanhf(0.7978845608f * (g + 0.044715f * g * g * g)));
        } else {
            g = at_most(g, limit);
            g = g * sigmoid(alpha * g);
            u = at_least(at_most(u, limit), -limit) + 1.0f;
        }
        out[row * columns + column] = rounded<T>(g * u);
    }
}

// A head of queries or keys: where it begins and how far apart tokens and heads are.
template <typename T> struct Heads {
    const T *at;
    long long token, head;
};

// The RMS norm of one head of one token and then its rotation: pairs (i, i + dims / 2) of the first `dims` elements turn by the
// token's angles. One thread block a token and head.
template <typename T>
__device__ void norm_rope(Heads<T> x, unsigned head, unsigned heads, const float *factor, float eps, const T *cos,
                          const T *sin, unsigned width, unsigned dims, T *out) {
    __shared__ float normed[WIDEST];
    long long token = blockIdx.x;
    x.at += token * x.token + head * x.head;
    out += (token * heads + head) * width;
    float squares = 0;
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x) squares += number(x.at[i]) * number(x.at[i]);
    float scale = 1.0f / sqrtf(of_block(squares, Sum()) / width + eps);
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x) normed[i] = number(x.at[i]) * scale * factor[i];
    __syncthreads();
    unsigned half = dims / 2;
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
        float turned = normed[i];
        if (i < dims) {
            unsigned pair = i % half;
            float c = number(cos[token * half + pair]), s = number(sin[token * half + pair]);
            turned = i < half ? normed[i] * c - normed[i + half] * s : normed[i - half] * s + normed[i] * c;
        }
        out[i] = rounded<T>(turned);
    }
}

// The causal convolution of a delta net, a channel each, then silu. Before the tokens `x` are the `taps - 1` of `before`; `weights` is
// (taps, channels), the last of the current token.
template <typename T>
__device__ void delta_conv(const T *before, const T *x, long long stride, const float *weights, unsigned channels, unsigned taps,
                           T *out) {
    unsigned channel = blockIdx.y * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    long long token = blockIdx.x;
    float sum = 0;
    for (unsigned tap = 0; tap < taps; tap++) {
        long long at = token + tap - (taps - 1);
        float value = number(at < 0 ? before[(token + tap) * channels + channel] : x[at * stride + channel]);
        sum += value * weights[tap * channels + channel];
    }
    out[token * channels + channel] = rounded<T>(sum * sigmoid(sum));
}

}  // namespace

// How each row stands after a block of scores, one thread block a row: `ends` gets the greatest score, the sum and, given
// what was before, the factor for the sums of then, each of all rows.
extern "C" __global__ void softmax_ends(const float *scores, const unsigned *seen, unsigned queries, long long first,
                                        long long n, float cap, const float *max_before, const float *sum_before,
                                        float *ends) {
    long long row = blockIdx.x, rows = gridDim.x;
    Range range = visible(seen, queries, first, n, row);
    Ends mine = {HIDDEN, 0};
    for (long long i = range.start + threadIdx.x; i < range.end; i += blockDim.x) {
        float score = capped(scores[row * n + i], cap);
        if (score > mine.max) {
            mine.sum = mine.sum * expf(mine.max - score) + 1.0f;
            mine.max = score;
        } else {
            mine.sum += expf(score - mine.max);
        }
    }
    mine = of_block(mine, Joined());
    if (threadIdx.x) return;
    if (max_before) {
        Ends all = Joined()({max_before[row], sum_before[row]}, mine);
        ends[2 * rows + row] = expf(max_before[row] - all.max);
        mine = all;
    }
    ends[row] = mine.max;
    ends[rows + row] = mine.sum;
}

// Queries and keys in one launch: the first `heads` of the grid's second dimension are those of `q`.
#define NORM_ROPE(T, NAME)                                                                                               \
    extern "C" __global__ void norm_rope_##NAME(const T *q, long long q_token, long long q_head, const float *q_factor,  \
                                                float q_eps, T *q_out, const T *k, long long k_token, long long k_head,  \
                                                const float *k_factor, float k_eps, T *k_out, const T *cos, const T *sin,\
                                                unsigned heads, unsigned width, unsigned dims) {                         \
        unsigned head = blockIdx.y;                                                                                      \
        if (head < heads) {                                                                                              \
            norm_rope<T>({q, q_token, q_head}, head, heads, q_factor, q_eps, cos, sin, width, dims, q_out);              \
        } else {                                                                                                         \
            unsigned keys = gridDim.y - heads;                                                                           \
            norm_rope<T>({k, k_token, k_head}, head - heads, keys, k_factor, k_eps, cos, sin, width, dims, k_out);       \
        }                                                                                                                \
    }

#define KERNELS(T, NAME)                                                                                                 \
    extern "C" __global__ void softmax_weights_##NAME(const float *scores, const unsigned *seen, unsigned queries,      \
                                                      long long first, long long n, float cap, const float *max,        \
                                                      T *out) {                                                         \
        weights<T>(scores, seen, queries, first, n, cap, max, out);                                                     \
    }                                                                                                                    \
    extern "C" __global__ void softmax_close_##NAME(const float *values, const float *max, const float *sum,            \
                                                    const float *sinks, unsigned queries, unsigned d, T *out) {         \
        close<T>(values, max, sum, sinks, queries, d, out);                                                             \
    }                                                                                                                    \
    extern "C" __global__ void rms_norm_##NAME(const T *x, const float *factor, unsigned width, float eps, T *out) {     \
        rms_norm<T>(x, factor, width, eps, out);                                                                         \
    }                                                                                                                    \
    extern "C" __global__ void gated_##NAME(const T *gate, const T *up, unsigned columns, unsigned rows,                \
                                            long long stride, int kind, float alpha, float limit, T *out) {             \
        gated<T>(gate, up, columns, rows, stride, kind, alpha, limit, out);                                             \
    }                                                                                                                    \
    NORM_ROPE(T, NAME)                                                                                                   \
    extern "C" __global__ void delta_conv_##NAME(const T *before, const T *x, long long stride, const float *weights,   \
                                                 unsigned channels, unsigned taps, T *out) {                            \
        delta_conv<T>(before, x, stride, weights, channels, taps, out);                                                 \
    }                                                                                                                    \
    extern "C" __global__ void gated_norm_##NAME(const float *x, const float *factor, const T *z, unsigned width,       \
                                                 float eps, T *out) {                                                   \
        gated_norm<T>(x, factor, z, width, eps, out);                                                                   \
    }                                                                                                                    \
    extern "C" __global__ void decay_##NAME(const T *x, const float *bias, const float *rate, unsigned columns,         \
                                            long long n, float *out) {                                                  \
        decay<T>(x, bias, rate, columns, n, out);                                                                       \
    }

KERNELS(float, f32)
KERNELS(__half, f16)
KERNELS(__nv_bfloat16, bf16)

#include "delta.cuh"
