// One step of a Llama-family model: rows in, KV written, logits of the wanted rows out. Run by all
// members of a team.
//
// Members divide rows, panels or heads between them and never one sum, so their number cannot change a bit.
#pragma once

#include "attention.h"
#include "linear.h"
#include "workspace.h"

namespace SJ_VARIANT {

constexpr int kLayersBetweenStops = 4;

struct Range { int begin, end; };

inline Range share(int count, int member, int size) {
  return {count * member / size, count * (member + 1) / size};
}

inline int panels(int outputs) { return (outputs + kPanel - 1) / kPanel; }

inline float inverse_rms(const float* x, int size, float epsilon) {
  Lanes squares = all(0.0f);
  for (int i = 0; i < size; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  return 1.0f / __builtin_sqrtf(sum(squares) / float(size) + epsilon);
}

inline void rms_norm(const float* x, const float* weight, int size, float epsilon, float* out) {
  const Lanes factor = all(inverse_rms(x, size, epsilon));
  for (int i = 0; i < size; i += kLanes)
    store(out + i, round_bf16(mul(mul(load(x + i), factor), load(weight + i))));
}

inline void norm_rows(const Step& step, const float* weight, int member) {
  const SjModel& m = *step.model;
  const Range mine = share(step.batch->rows, member, step.team->size());
  for (int r = mine.begin; r < mine.end; ++r)
    rms_norm(step.space->residual + long(r) * m.hidden, weight, m.hidden, m.epsilon,
             step.space->normed + long(r) * m.hidden);
}

// Row `token` of the embedding, picked out of its panel: one 2-byte column, K lines apart.
inline void embed(const Step& step, int member) {
  const SjModel& m = *step.model;
  const Range mine = share(step.batch->rows, member, step.team->size());
  for (int r = mine.begin; r < mine.end; ++r) {
    const int token = step.batch->tokens[r], within = token % kPanel;
    const uint16_t* panel = m.embedding + long(token / kPanel) * m.hidden * kPanel;
    const uint16_t* column = panel + 2 * (within % 16) + within / 16;
    float* out = step.space->residual + long(r) * m.hidden;
    for (int i = 0; i < m.hidden; ++i) out[i] = from_bf16(column[long(i) * kPanel]);
  }
}

inline uint16_t* tile_at(const Step& step, int layer, int row, int tile, int kv, int head) {
  const SjModel& m = *step.model;
  const long tile_size = long(kTile) * m.head_dim;
  const long block = step.batch->blocks[step.batch->table_start[row] + tile];
  const long index = ((block * m.layer_count + layer) * 2 + kv) * m.kv_heads + head;
  return reinterpret_cast<uint16_t*>(step.batch->kv) + index * tile_size;
}

inline void rotate(float* head, int head_dim, const float* cosine, const float* sine) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; i += kLanes) {
    const Lanes a = load(head + i), b = load(head + half + i), c = load(cosine + i), s = load(sine + i);
    store(head + i, fma(a, c, mul(sub(all(0.0f), b), s)));
    store(head + half + i, fma(b, c, mul(a, s)));
  }
}

inline void norm_head(float* head, const float* weight, int head_dim, float epsilon) {
  const Lanes factor = all(inverse_rms(head, head_dim, epsilon));
  for (int i = 0; i < head_dim; i += kLanes)
    store(head + i, mul(mul(load(head + i), factor), load(weight + i)));
}

// Rotates queries and keys of the member's rows by their positions, and writes keys and values into
// the cache.
inline void place(const Step& step, int layer, int member) {
  const SjModel& m = *step.model;
  const SjLayer& l = m.layers[layer];
  const int width = panels((m.heads + 2 * m.kv_heads) * m.head_dim) * kPanel;
  alignas(64) float cosine[kMaxHeadDim / 2], sine[kMaxHeadDim / 2];
  const Range mine = share(step.batch->rows, member, step.team->size());
  for (int r = mine.begin; r < mine.end; ++r) {
    float* q = step.space->qkv + long(r) * width;
    float* k = q + m.heads * m.head_dim;
    const float* v = k + m.kv_heads * m.head_dim;
    const int position = step.batch->positions[r], slot = position % kTile;
    if (l.qkv_bias)
      for (int i = 0; i < (m.heads + 2 * m.kv_heads) * m.head_dim; ++i) q[i] += l.qkv_bias[i];
    for (int i = 0; i < m.head_dim / 2; ++i) sincos(position * m.rope_frequencies[i], sine[i], cosine[i]);
    for (int h = 0; h < m.heads; ++h) {
      if (l.q_norm) norm_head(q + h * m.head_dim, l.q_norm, m.head_dim, m.epsilon);
      rotate(q + h * m.head_dim, m.head_dim, cosine, sine);
    }
    for (int h = 0; h < m.kv_heads; ++h) {
      float* key = k + h * m.head_dim;
      if (l.k_norm) norm_head(key, l.k_norm, m.head_dim, m.epsilon);
      rotate(key, m.head_dim, cosine, sine);
      uint16_t* keys = tile_at(step, layer, r, position / kTile, 0, h);
      uint16_t* values = tile_at(step, layer, r, position / kTile, 1, h) + slot * m.head_dim;
      for (int d = 0; d < m.head_dim; ++d) keys[d * kTile + slot] = to_bf16(key[d]);
      for (int d = 0; d < m.head_dim; ++d) values[d] = to_bf16(v[h * m.head_dim + d]);
    }
  }
}

template <int G>
inline void attend_heads(const Step& step, int layer, int row, int kv_head, const float* q, float* out) {
  const SjModel& m = *step.model;
  attend<G>(
      q, m.head_dim, m.score_scale, step.batch->positions[row],
      [&](int t) -> const uint16_t* { return tile_at(step, layer, row, t, 0, kv_head); },
      [&](int t) -> const uint16_t* { return tile_at(step, layer, row, t, 1, kv_head); }, out);
}

inline void attention(const Step& step, int layer) {
  const SjModel& m = *step.model;
  const int width = panels((m.heads + 2 * m.kv_heads) * m.head_dim) * kPanel, group = m.heads / m.kv_heads;
  const int items = step.batch->rows * m.kv_heads;
  for (int item = step.space->claimed.next(); item < items; item = step.space->claimed.next()) {
    // Last rows first: they have the longest way, and a short one ends the race more evenly.
    const int row = step.batch->rows - 1 - item / m.kv_heads, kv_head = item % m.kv_heads;
    for (int g = 0; g < group;) {
      const int head = kv_head * group + g, left = group - g;
      const float* q = step.space->qkv + long(row) * width + head * m.head_dim;
      float* out = step.space->mixed + (long(row) * m.heads + head) * m.head_dim;
      if (left >= 4) { attend_heads<4>(step, layer, row, kv_head, q, out); g += 4; }
      else if (left == 3) { attend_heads<3>(step, layer, row, kv_head, q, out); g += 3; }
      else if (left == 2) { attend_heads<2>(step, layer, row, kv_head, q, out); g += 2; }
      else { attend_heads<1>(step, layer, row, kv_head, q, out); g += 1; }
    }
  }
}

// x + W y, into the residual. Outputs beyond `hidden` are padding.
inline void add_linear(const Step& step, const float* y, int k_size, const uint16_t* weights, int member) {
  const SjModel& m = *step.model;
  const Range mine = share(panels(m.hidden), member, step.team->size());
  linear(y, step.batch->rows, k_size, weights, mine.begin, mine.end, [&](int r, int p, Lanes a, Lanes b) {
    float* at = step.space->residual + long(r) * m.hidden + p * kPanel;
    store(at, add(load(at), a));
    if (p * kPanel + 16 < m.hidden) store(at + 16, add(load(at + 16), b));
  });
}

inline void gated(const Step& step, const uint16_t* weights, int member) {
  const SjModel& m = *step.model;
  const Range mine = share(m.inner / 16, member, step.team->size());
  linear(step.space->normed, step.batch->rows, m.hidden, weights, mine.begin, mine.end,
         [&](int r, int p, Lanes gate, Lanes up) {
           const Lanes silu = div(gate, add(all(1.0f), exp(sub(all(0.0f), gate))));
           store(step.space->inner + long(r) * m.inner + p * 16, round_bf16(mul(silu, up)));
         });
}

inline void project(const Step& step, const uint16_t* weights, int member) {
  const SjModel& m = *step.model;
  const int count = panels((m.heads + 2 * m.kv_heads) * m.head_dim);
  const Range mine = share(count, member, step.team->size());
  linear(step.space->normed, step.batch->rows, m.hidden, weights, mine.begin, mine.end,
         [&](int r, int p, Lanes a, Lanes b) {
           float* at = step.space->qkv + (long(r) * count + p) * kPanel;
           store(at, a);
           store(at + 16, b);
         });
}

inline void write_logits(const Step& step, int member) {
  const SjModel& m = *step.model;
  const SjBatch& b = *step.batch;
  const Range rows = share(b.wanted_count, member, step.team->size());
  for (int i = rows.begin; i < rows.end; ++i)
    rms_norm(step.space->residual + long(b.wanted[i]) * m.hidden, m.final_norm, m.hidden, m.epsilon,
             step.space->normed + long(i) * m.hidden);
  step.team->barrier();
  const Range mine = share(panels(m.vocab), member, step.team->size());
  linear(step.space->normed, b.wanted_count, m.hidden, m.head, mine.begin, mine.end,
         [&](int r, int p, Lanes first, Lanes second) {
           float* at = b.logits + long(r) * m.vocab + p * kPanel;
           if ((p + 1) * kPanel <= m.vocab) {
             store(at, first);
             store(at + 16, second);
             return;
           }
           alignas(64) float both[kPanel];
           store(both, first);
           store(both + 16, second);
           for (int i = 0; i < m.vocab - p * kPanel; ++i) at[i] = both[i];
         });
}

inline bool asked_to_stop(const SjBatch& batch) {
  return (batch.stop && *batch.stop) || (batch.poll && batch.poll());
}

// One member's part of the step. Every member takes every barrier.
inline void run_step(const Step& step, int member) {
  const SjModel& m = *step.model;
  _mm_setcsr(0x1f80);  // IEEE defaults: another library may have asked for flushed denormals
  embed(step, member);
  for (int layer = 0; layer < m.layer_count; ++layer) {
    const SjLayer& l = m.layers[layer];
    if (member == 0) {
      if (layer % kLayersBetweenStops == 0) step.space->stopping = asked_to_stop(*step.batch);
      step.space->claimed.reset();
    }
    norm_rows(step, l.attention_norm, member);
    step.team->barrier();
    if (step.space->stopping) return;
    project(step, l.qkv, member);
    step.team->barrier();
    place(step, layer, member);
    step.team->barrier();
    attention(step, layer);
    step.team->barrier();
    add_linear(step, step.space->mixed, m.heads * m.head_dim, l.attention_out, member);
    step.team->barrier();
    norm_rows(step, l.mlp_norm, member);
    step.team->barrier();
    gated(step, l.gate_up, member);
    step.team->barrier();
    add_linear(step, step.space->inner, m.inner, l.down, member);
    step.team->barrier();
  }
  if (step.batch->wanted_count) write_logits(step, member);
}

}  // namespace SJ_VARIANT
