// FlashAttention 2 by its definition: what libflashattention.a holds in builds for the rehearsal, in place of
// candle-flash-attn's kernels. That crate calls `run_mha` and nothing else (its src/ffi.rs); rehearsal/nvcc compiles this file.
//
// What the kernels do with strides, masks and types is done here too; how they go about it in blocks is not. What they cannot
// do, or what Candle never asks for, stops the program by name. The work is queued on the stream given, as theirs is, and
// every range it reads or writes is checked by the rehearsal when it runs.
#include "kernel/fault.h"
#include "kernel/half.h"
#include "kernel/standin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// (batch, row, head, width) of 16-bit floats; strides in elements, and 1 along the width.
typedef struct View {
  uint16_t *at;
  size_t batch, row, head;
} View;

typedef struct Attention {
  View q, k, v, o;
  float *lse;                     // (batch, head, row), contiguous: the logarithm of each softmax's denominator
  size_t batches, heads, kv_heads, width;
  size_t queries, keys;           // rows; the last query stands at the last key
  int64_t left, right;            // keys seen before and after a query's own; negative: all
  float scale, softcap;           // softcap 0: none
  int bf16;                       // else f16
} Attention;

static __attribute__((noreturn)) void stop(const char *what) { fault("run_mha (FlashAttention 2)", what); }

static float number(const Attention *a, uint16_t bits) { return a->bf16 ? bf16(bits) : f16(bits); }
static uint16_t rounded(const Attention *a, float x) { return a->bf16 ? to_bf16(x) : to_f16(x); }

static const uint16_t *row(View x, size_t batch, size_t head, size_t row) {
  return x.at + batch * x.batch + head * x.head + row * x.row;
}

// The half-open range of keys that a query row sees. It may be empty, and then begin after its end.
static void visible(const Attention *a, size_t query, int64_t *from, int64_t *to) {
  int64_t own = (int64_t)query + (int64_t)a->keys - (int64_t)a->queries;
  *from = a->left < 0 || own < a->left ? 0 : own - a->left;
  *to = a->right < 0 || own + a->right >= (int64_t)a->keys ? (int64_t)a->keys : own + a->right + 1;
}

// One query row of one head. `keys` is (width, keys), so that the sums over the width run along memory; `values` is
// (keys, width); `weights` and `sums` are room for the keys and for the width.
static void attend(const Attention *a, size_t batch, size_t head, size_t query, const float *keys, const float *values,
                   float *weights, float *sums) {
  const uint16_t *q = row(a->q, batch, head, query);
  for (size_t j = 0; j < a->keys; j++) weights[j] = 0;
  for (size_t c = 0; c < a->width; c++) {
    float x = number(a, q[c]);
    for (size_t j = 0; j < a->keys; j++) weights[j] += x * keys[c * a->keys + j];
  }

  int64_t from, to;
  visible(a, query, &from, &to);
  float most = -INFINITY, total = 0;
  for (int64_t j = from; j < to; j++) {
    float score = weights[j] * a->scale;
    weights[j] = a->softcap > 0 ? a->softcap * tanhf(score / a->softcap) : score;
    if (weights[j] > most) most = weights[j];
  }
  // A row without keys, or with scores of minus infinity alone, has no sum.
  if (most == -INFINITY) most = 0;
  for (int64_t j = 0; j < (int64_t)a->keys; j++) weights[j] = from <= j && j < to ? expf(weights[j] - most) : 0;
  for (int64_t j = from; j < to; j++) total += weights[j];

  // Hidden keys have a weight of 0 and still multiply their values, as in the kernels' blocks: a NaN there is seen. The
  // tensor cores take weights in the values' type; the denominator has them in f32.
  for (size_t c = 0; c < a->width; c++) sums[c] = 0;
  for (size_t j = 0; j < a->keys; j++) {
    float weight = number(a, rounded(a, weights[j]));
    for (size_t c = 0; c < a->width; c++) sums[c] += weight * values[j * a->width + c];
  }
  uint16_t *out = a->o.at + batch * a->o.batch + head * a->o.head + query * a->o.row;
  for (size_t c = 0; c < a->width; c++) out[c] = rounded(a, total == 0 ? 0 : sums[c] / total);
  a->lse[(batch * a->heads + head) * a->queries + query] = total == 0 ? INFINITY : most + logf(total);
}

static void run(void *data) {
  const Attention *a = data;
  size_t group = a->heads / a->kv_heads;
  float *room = malloc((2 * a->keys * a->width + a->keys + a->width) * sizeof *room);
  if (!room) stop("the host has no memory for the keys and values of one head in f32");
  float *keys = room, *values = keys + a->keys * a->width, *weights = values + a->keys * a->width, *sums = weights + a->keys;
  for (size_t batch = 0; batch < a->batches; batch++)
    for (size_t kv_head = 0; kv_head < a->kv_heads; kv_head++) {
      for (size_t j = 0; j < a->keys; j++) {
        const uint16_t *k = row(a->k, batch, kv_head, j), *v = row(a->v, batch, kv_head, j);
        for (size_t c = 0; c < a->width; c++) {
          keys[c * a->keys + j] = number(a, k[c]);
          values[j * a->width + c] = number(a, v[c]);
        }
      }
      for (size_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (size_t query = 0; query < a->queries; query++)
          attend(a, batch, head, query, keys, values, weights, sums);
    }
  free(room);
}

// The kernels move 16 bytes at a time. A stride is used only where there is a second element.
static void aligned(const Attention *a, View x, size_t heads, size_t rows) {
  if ((uintptr_t)x.at % 16 || (a->batches > 1 && x.batch % 8) || (heads > 1 && x.head % 8) || (rows > 1 && x.row % 8))
    stop("a tensor or one of its strides is no multiple of 16 bytes, which the kernels' loads need");
}

// Each head's rows as a range of their own: in a cache, what lies between two heads is no part of the tensor.
static Use *ranges(Use *use, const Attention *a, View x, size_t heads, size_t rows, int write) {
  for (size_t batch = 0; batch < a->batches; batch++)
    for (size_t head = 0; head < heads; head++)
      *use++ = (Use){row(x, batch, head, 0), ((rows - 1) * x.row + a->width) * sizeof(uint16_t), write};
  return use;
}

static uint32_t up_to(uint32_t x, uint32_t multiple) { return (x + multiple - 1) / multiple * multiple; }

__attribute__((visibility("default"))) void run_mha(
    // Tensors; `softmax_lse` is f32. The others must be null: slopes of ALiBi, borders of sequences of several lengths.
    void *q, void *k, void *v, void *o, void *softmax_lse, void *alibi_slopes,
    const int32_t *cu_seqlens_q, const int32_t *cu_seqlens_k,
    // Strides in elements, from one batch, row or head to the next.
    uint32_t q_batch_stride, uint32_t k_batch_stride, uint32_t v_batch_stride, uint32_t o_batch_stride,
    uint32_t alibi_slopes_batch_stride,
    uint32_t q_row_stride, uint32_t k_row_stride, uint32_t v_row_stride, uint32_t o_row_stride,
    uint32_t q_head_stride, uint32_t k_head_stride, uint32_t v_head_stride, uint32_t o_head_stride,
    // Batches, query heads, key and value heads; their width, and that rounded up to 32.
    uint32_t b, uint32_t h, uint32_t h_k, uint32_t d, uint32_t d_rounded, float softmax_scale,
    // Query rows and key rows, and both rounded up to 128; query rows of all batches.
    uint32_t seqlen_q, uint32_t seqlen_k, uint32_t seqlen_q_rounded, uint32_t seqlen_k_rounded, uint32_t total_q,
    // `is_causal`: keys after a query's own are hidden, and the left window does not count. `unpadded_lse`: the layout for
    // sequences of several lengths.
    int is_bf16, int is_causal, int unpadded_lse,
    // How many keys a query sees to the left and to the right of its own, which is seen too; negative: no limit. The last
    // query's own key is the last.
    int window_size_left, int window_size_right, float softcap,
    // A cache in pages, and ranges of a prompt that see each other both ways: null.
    const int32_t *block_table, uint32_t block_table_batch_stride, int page_block_size,
    const int32_t *mm_prefix_ranges, uint32_t mm_prefix_range_batch_stride, int max_mm_prefix_ranges,
    void *stream) {
  (void)alibi_slopes_batch_stride, (void)block_table_batch_stride, (void)page_block_size;
  (void)mm_prefix_range_batch_stride, (void)max_mm_prefix_ranges;
  if (alibi_slopes) stop("slopes of ALiBi are not rehearsed");
  if (cu_seqlens_q || cu_seqlens_k || unpadded_lse) stop("sequences of several lengths (varlen) are not rehearsed");
  if (block_table) stop("a cache in pages is not rehearsed");
  if (mm_prefix_ranges) stop("ranges that see each other both ways are not rehearsed");
  if (!b || !h || !seqlen_q) stop("a launch with an empty grid, whose error the kernels' launcher drops");
  if (!h_k || h % h_k) stop("the query heads are no multiple of the key and value heads");
  if (!d || d % 8 || d > 512) stop("heads must be a multiple of 8 wide and at most 512");
  if (d_rounded != up_to(d, 32)) stop("d_rounded is not d rounded up to 32");
  if (seqlen_q_rounded != up_to(seqlen_q, 128) || seqlen_k_rounded != up_to(seqlen_k, 128))
    stop("rounded lengths are not the lengths rounded up to 128");
  if (total_q != b * seqlen_q) stop("total_q is not the batches' query rows");
  if (is_causal && window_size_right != 0) stop("causal, but with a window to the right");

  Attention a = {
      .q = {q, q_batch_stride, q_row_stride, q_head_stride},
      .k = {k, k_batch_stride, k_row_stride, k_head_stride},
      .v = {v, v_batch_stride, v_row_stride, v_head_stride},
      .o = {o, o_batch_stride, o_row_stride, o_head_stride},
      .lse = softmax_lse,
      .batches = b, .heads = h, .kv_heads = h_k, .width = d,
      .queries = seqlen_q, .keys = seqlen_k,
      .left = is_causal ? -1 : window_size_left, .right = window_size_right,
      .scale = softmax_scale, .softcap = softcap > 0 ? softcap : 0,
      .bf16 = is_bf16,
  };
  aligned(&a, a.q, h, seqlen_q), aligned(&a, a.o, h, seqlen_q);
  aligned(&a, a.k, h_k, seqlen_k), aligned(&a, a.v, h_k, seqlen_k);

  Use *uses = malloc((2 * (size_t)b * (h + h_k) + 1) * sizeof *uses);
  if (!uses) stop("the host has no memory for the list of ranges");
  Use *end = ranges(uses, &a, a.q, h, seqlen_q, 0);
  if (seqlen_k) {
    end = ranges(end, &a, a.k, h_k, seqlen_k, 0);
    end = ranges(end, &a, a.v, h_k, seqlen_k, 0);
  }
  end = ranges(end, &a, a.o, h, seqlen_q, 1);
  *end++ = (Use){softmax_lse, (size_t)b * h * seqlen_q * sizeof(float), 1};
  // The kernels' launcher drops errors, and the output stays as it was allocated. Here it is said.
  if (rehearsal_enqueue(stream, run, &a, sizeof a, uses, (size_t)(end - uses), "run_mha")) stop("the launch failed");
  free(uses);
}
