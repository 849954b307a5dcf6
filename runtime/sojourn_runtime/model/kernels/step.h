// One step of a Llama-family model: rows in, KV written, logits of the wanted rows out. Run by all
// members of a team.
#pragma once

#include "attention.h"
#include "experts.h"
#include "rows.h"

namespace SJ_VARIANT {

constexpr int kLayersBetweenStops = 4;

// Row `token` of the embedding, picked out of its panel: one column.
inline void embed_row(const SjLinear& embedding, int token, int size, float* out) {
  const int panel = token / kPanel, within = token % kPanel;
  if (embedding.kind == SJ_BF16) {
    const uint16_t* values = static_cast<const uint16_t*>(embedding.panels) + long(panel) * size * kPanel;
    const uint16_t* column = values + 2 * (within % 16) + within / 16;
    for (int i = 0; i < size; ++i) out[i] = from_bf16(column[long(i) * kPanel]);
    return;
  }
  const float scale = scales_of(embedding.panels, panel, size)[within];
  const uint8_t* bytes = static_cast<const uint8_t*>(embedding.panels) + panel * byte_panel(size);
  for (int i = 0; i < size; ++i) {
    if (embedding.kind == SJ_W8A8)
      out[i] = float(int(bytes[long(i / 4) * 4 * kPanel + within * 4 + i % 4]) - 128) * scale;
    else
      out[i] = float(int8_t(bytes[long(i) * kPanel + within])) * scale;
  }
}

// Embeddings of the member's rows, and the angles by which they are rotated in every layer.
inline void embed(const Step& step, int member) {
  const SjModel& m = *step.model;
  const int half = m.head_dim / 2;
  const Range mine = share(step.batch->rows, member, step.team->size());
  for (int r = mine.begin; r < mine.end; ++r) {
    embed_row(m.embedding, step.batch->tokens[r], m.hidden, step.space->residual + long(r) * m.hidden);
    float* cosine = step.space->angles + long(r) * m.head_dim;
    for (int i = 0; i < half; ++i)
      sincos(step.batch->positions[r] * m.rope_frequencies[i], cosine[half + i], cosine[i]);
  }
}

inline uint16_t* tile_at(const Step& step, int layer, int row, int tile, int kv, int head) {
  const SjModel& m = *step.model;
  const long tile_size = long(kTile) * m.head_dim;
  const long block = step.batch->blocks[step.batch->table_start[row] + tile];
  const SjRange& mine = m.part.kv_heads;
  const long index = ((block * m.layer_count + layer) * 2 + kv) * (mine.end - mine.begin) + head - mine.begin;
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

// Each head of one row for itself, or all as one vector.
inline void norm_heads(float* heads, const float* weight, int count, const SjModel& m) {
  if (!weight) return;
  const int size = m.whole_norms ? count * m.head_dim : m.head_dim;
  for (float *x = heads, *end = heads + count * m.head_dim; x < end; x += size) {
    const Lanes factor = all(inverse_rms(x, size, m.epsilon));
    for (int i = 0; i < size; i += kLanes) store(x + i, mul(mul(load(x + i), factor), load(weight + i)));
  }
}

// Rotates queries and keys of the member's rows by their positions, and writes keys and values into
// the cache: of this process's heads alone, but for norms that take all of them.
inline void place(const Step& step, int layer, int member) {
  const SjModel& m = *step.model;
  const SjLayer& l = m.layers[layer];
  const SjRange& own = m.part.kv_heads;
  const int width = panels((m.heads + 2 * m.kv_heads) * m.head_dim) * kPanel, group = m.heads / m.kv_heads;
  const int first = m.whole_norms ? 0 : own.begin, count = m.whole_norms ? m.kv_heads : own.end - own.begin;
  const Range mine = share(step.batch->rows, member, step.team->size());
  for (int r = mine.begin; r < mine.end; ++r) {
    float* q = step.space->qkv + long(r) * width;
    float* k = q + m.heads * m.head_dim;
    const float* v = k + m.kv_heads * m.head_dim;
    const float* cosine = step.space->angles + long(r) * m.head_dim;
    const float* sine = cosine + m.head_dim / 2;
    const int position = step.batch->positions[r], slot = position % kTile;
    if (l.qkv_bias)
      for (int i = 0; i < (m.heads + 2 * m.kv_heads) * m.head_dim; ++i) q[i] += l.qkv_bias[i];
    norm_heads(q + first * group * m.head_dim, l.q_norm, count * group, m);
    norm_heads(k + first * m.head_dim, l.k_norm, count, m);
    for (int h = own.begin * group; h < own.end * group; ++h) rotate(q + h * m.head_dim, m.head_dim, cosine, sine);
    for (int h = own.begin; h < own.end; ++h) {
      float* key = k + h * m.head_dim;
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
  const int position = step.batch->positions[row], window = m.layers[layer].window;
  attend<G>(
      q, m.head_dim, m.score_scale, position < window ? 0 : position + 1 - window, position,
      [&](int t) -> const uint16_t* { return tile_at(step, layer, row, t, 0, kv_head); },
      [&](int t) -> const uint16_t* { return tile_at(step, layer, row, t, 1, kv_head); }, out);
}

inline void attention(const Step& step, int layer) {
  const SjModel& m = *step.model;
  const int width = panels((m.heads + 2 * m.kv_heads) * m.head_dim) * kPanel, group = m.heads / m.kv_heads;
  const int first = m.part.kv_heads.begin, count = m.part.kv_heads.end - first;
  const int items = step.batch->rows * count;
  for (int item = step.space->claimed.next(); item < items; item = step.space->claimed.next()) {
    // Last rows first: they have the longest way, and a short one ends the race more evenly.
    const int row = step.batch->rows - 1 - item / count, kv_head = first + item % count;
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

// x + W y + bias, into the residual; no bias if null. Outputs beyond `hidden` are padding.
inline void add_linear(const Step& step, const float* y, int k_size, const SjLinear& l, const float* bias,
                       int member) {
  const SjModel& m = *step.model;
  prepare(step, l, y, k_size, member);
  apply(step, l, y, step.batch->rows, k_size, m.part.hidden, member, [&](int r, int p, Lanes a, Lanes b) {
    float* at = step.space->residual + long(r) * m.hidden + p * kPanel;
    const auto put = [&](int i, Lanes sum) {
      if (bias) sum = add(sum, load(bias + p * kPanel + i));
      store(at + i, add(load(at + i), sum));
    };
    put(0, a);
    if (p * kPanel + 16 < m.hidden) put(16, b);
  });
}

inline void gated(const Step& step, const SjLinear& l, int member) {
  const SjModel& m = *step.model;
  const int rows = step.batch->rows;
  const float* x = normed(step, rows, member);
  apply(step, l, x, rows, m.hidden, m.part.inner, member, [&](int r, int p, Lanes gates, Lanes ups) {
    store(step.space->inner + long(r) * m.inner + p * 16, gate(gates, ups));
  });
}

inline void project(const Step& step, const SjLinear& l, int member) {
  const SjModel& m = *step.model;
  const int count = panels((m.heads + 2 * m.kv_heads) * m.head_dim);
  const int rows = step.batch->rows;
  const float* x = normed(step, rows, member);
  const auto finish = [&](int r, int p, Lanes a, Lanes b) {
    float* at = step.space->qkv + (long(r) * count + p) * kPanel;
    store(at, a);
    store(at + 16, b);
  };
  const int first = m.part.kv_heads.begin, end = m.part.kv_heads.end;
  if (end - first == m.kv_heads) {
    apply(step, l, x, rows, m.hidden, {0, count}, member, finish);
    return;
  }
  // Queries, keys and values of the part's heads. A head is whole panels, since 32 divides its size.
  const int head = m.head_dim / kPanel, group = m.heads / m.kv_heads;
  const int keys = m.heads * head, values = keys + m.kv_heads * head;
  apply(step, l, x, rows, m.hidden, {first * group * head, end * group * head}, member, finish);
  apply(step, l, x, rows, m.hidden, {keys + first * head, keys + end * head}, member, finish);
  apply(step, l, x, rows, m.hidden, {values + first * head, values + end * head}, member, finish);
}

inline void write_logits(const Step& step, int member) {
  const SjModel& m = *step.model;
  const SjBatch& b = *step.batch;
  const int rows = b.wanted_count;
  norm_rows(step, m.final_norm, &m.head, b.wanted, rows, member);
  const float* x = normed(step, rows, member);
  apply(step, m.head, x, rows, m.hidden, m.part.vocab, member, [&](int r, int p, Lanes one, Lanes two) {
    float* at = b.logits + long(r) * m.vocab + p * kPanel;
    if ((p + 1) * kPanel <= m.vocab) {
      store(at, one);
      store(at + 16, two);
      return;
    }
    alignas(64) float both[kPanel];
    store(both, one);
    store(both + 16, two);
    for (int i = 0; i < m.vocab - p * kPanel; ++i) at[i] = both[i];
  });
}

inline bool asked_to_stop(const SjBatch& batch) {
  const bool asked = (batch.stop && *batch.stop) || (batch.poll && batch.poll());
  return batch.agree ? batch.agree(asked) != 0 : asked;
}

// One member's part of the step. Every member takes every barrier.
inline void run_step(const Step& step, int member) {
  const SjModel& m = *step.model;
  _mm_setcsr(0x1f80);  // IEEE defaults: another library may have asked for flushed denormals
  [[maybe_unused]] const Tiles tiles;
  embed(step, member);
  for (int layer = 0; layer < m.layer_count; ++layer) {
    const SjLayer& l = m.layers[layer];
    if (layer % kLayersBetweenStops == 0) {
      if (member == 0) step.space->stopping = asked_to_stop(*step.batch);
      step.team->barrier();
      if (step.space->stopping) return;
    }
    if (member == 0) step.space->claimed.reset();
    norm_rows(step, l.attention_norm, &l.qkv, nullptr, step.batch->rows, member);
    project(step, l.qkv, member);
    step.team->barrier();
    if (m.whole_norms) {
      exchange(step, SJ_QUERIES, step.space->qkv, step.batch->rows, member);
      exchange(step, SJ_KEYS, step.space->qkv, step.batch->rows, member);
    }
    place(step, layer, member);
    step.team->barrier();
    attention(step, layer);
    step.team->barrier();
    exchange(step, SJ_MIXED, step.space->mixed, step.batch->rows, member);
    add_linear(step, step.space->mixed, m.heads * m.head_dim, l.attention_out, l.attention_out_bias, member);
    step.team->barrier();
    exchange(step, SJ_RESIDUAL, step.space->residual, step.batch->rows, member);
    norm_rows(step, l.mlp_norm, m.experts ? nullptr : &l.gate_up, nullptr, step.batch->rows, member);
    if (m.experts) {
      experts(step, l, member);
    } else {
      gated(step, l.gate_up, member);
      step.team->barrier();
      exchange(step, SJ_INNER, step.space->inner, step.batch->rows, member);
      add_linear(step, step.space->inner, m.inner, l.down, nullptr, member);
    }
    step.team->barrier();
    exchange(step, SJ_RESIDUAL, step.space->residual, step.batch->rows, member);
  }
  if (!step.batch->wanted_count) return;
  write_logits(step, member);
  if (step.batch->exchange) step.team->barrier();
  exchange(step, SJ_LOGITS, step.batch->logits, step.batch->wanted_count, member);
}

}  // namespace SJ_VARIANT
