// How the members of a team share the rows of a step: normed, turned into bytes, put through a linear.
//
// Members divide rows or panels between them and never one sum, so their number cannot change a bit.
#pragma once

#include "tiles.h"

namespace SJ_VARIANT {

struct Range { int begin, end; };

inline Range share(int count, int member, int size) {
  return {count * member / size, count * (member + 1) / size};
}

inline Range share(const SjRange& all, int member, int size) {
  const Range mine = share(all.end - all.begin, member, size);
  return {all.begin + mine.begin, all.begin + mine.end};
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

inline Range share_rows(const Step& step, int count, int member) {
  return count == 1 ? Range{0, 1} : share(count, member, step.team->size());
}

// Of a single row every member makes a copy for itself, at its own place: less work than the barrier
// that would follow a shared one.
inline int copy_of(int count, int member) { return count == 1 ? member : 0; }

inline void meet(const Step& step, int count) {
  if (count > 1) step.team->barrier();
}

inline Activation* bytes_of(const Step& step, int row, int k_size) {
  return reinterpret_cast<Activation*>(step.space->bytes) + long(row) * k_size;
}

inline uint16_t* packed_of(const Step& step, int row, int k_size) {
  return reinterpret_cast<uint16_t*>(step.space->bytes) + long(row) * whole_steps(k_size) * kPairStep;
}

inline void quantise_row(const Step& step, const float* x, int to, int k_size) {
  step.space->scales[to] = quantise(x, k_size, bytes_of(step, to, k_size), step.space->offsets[to]);
}

inline bool wants_packed(const Step& step, const SjLinear& linear, int rows) {
  return linear.kind == SJ_BF16 && by_tiles(step, rows);
}

// One of `rows` in the form that `linear` reads beside floats, if there is one.
inline void form_row(const Step& step, const SjLinear& linear, int rows, const float* x, int to, int k_size) {
  if (linear.kind == SJ_W8A8) quantise_row(step, x, to, k_size);
  if (wants_packed(step, linear, rows)) pack_row(x, k_size, packed_of(step, to, k_size));
}

// The input of `linear` in its form.
inline void prepare(const Step& step, const SjLinear& linear, const float* x, int k_size, int member) {
  const int rows = step.batch->rows, copy = copy_of(rows, member);
  if (linear.kind != SJ_W8A8 && !wants_packed(step, linear, rows)) return;
  const Range mine = share_rows(step, rows, member);
  for (int r = mine.begin; r < mine.end; ++r) form_row(step, linear, rows, x + long(r) * k_size, r + copy, k_size);
  meet(step, rows);
}

// Rows of `x`, or their bytes, through some panels of a linear of whichever kind.
template <class Finish>
inline void apply(const Step& step, const SjLinear& l, const float* x, int rows, int k_size,
                  const SjRange& some, int member, const Finish& finish) {
  const Range mine = share(some, member, step.team->size());
  if (l.kind == SJ_W8A8) {
    const int copy = copy_of(rows, member);
    const ByteRows bytes = {bytes_of(step, copy, k_size), step.space->scales + copy,
                            step.space->offsets + copy};
    const uint8_t* weights = static_cast<const uint8_t*>(l.panels);
    linear_w8a8(bytes, rows, k_size, weights, mine.begin, mine.end, finish);
  } else if (l.kind == SJ_W8A16) {
    const int8_t* weights = static_cast<const int8_t*>(l.panels);
    linear_w8a16(x, rows, k_size, weights, mine.begin, mine.end, finish);
  } else {
    const uint16_t* weights = static_cast<const uint16_t*>(l.panels);
    const long panel = long(k_size) * kPanel;
    if (wants_packed(step, l, rows))
      linear_tiles(packed_of(step, 0, k_size), rows, k_size, weights, mine.begin, mine.end,
                   step.space->paired + member * step.space->paired_size, finish);
    else if (step.space->pairs)
      linear<true>(x, rows, k_size, weights, panel, mine.begin, mine.end, finish);
    else
      linear(x, rows, k_size, weights, panel, mine.begin, mine.end, finish);
  }
}

// `count` rows of the residual, normed for `next`, null if nothing but floats is read of them; `which` names
// them, null stands for all.
inline void norm_rows(const Step& step, const float* weight, const SjLinear* next, const int32_t* which,
                      int count, int member) {
  const SjModel& m = *step.model;
  const Range mine = share_rows(step, count, member);
  for (int r = mine.begin; r < mine.end; ++r) {
    const int from = which ? which[r] : r, to = r + copy_of(count, member);
    float* out = step.space->normed + long(to) * m.hidden;
    rms_norm(step.space->residual + long(from) * m.hidden, weight, m.hidden, m.epsilon, out);
    if (next) form_row(step, *next, count, out, to, m.hidden);
  }
  meet(step, count);
}

inline const float* normed(const Step& step, int count, int member) {
  return step.space->normed + long(copy_of(count, member)) * step.model->hidden;
}

// Behind a barrier: the columns of `count` rows that other processes computed, for every member.
inline void exchange(const Step& step, SjColumns columns, float* rows, int count, int member) {
  if (!step.batch->exchange) return;
  if (member == 0) step.batch->exchange(columns, rows, count);
  step.team->barrier();
}

// SwiGLU of sixteen outputs.
inline Lanes gate(Lanes gates, Lanes ups) {
  return round_bf16(mul(div(gates, add(all(1.0f), exp(sub(all(0.0f), gates)))), ups));
}

}  // namespace SJ_VARIANT
