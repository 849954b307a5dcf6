// The experts of a layer: a router chooses some for each row, and their outputs are added by its weights.
//
// Rows that chose the same expert pass through it together. That changes no bit: a linear treats each row for
// itself, and a row's outputs are summed in the order of its own choice, then the shared expert's.
#pragma once

#include "rows.h"

namespace SJ_VARIANT {

inline int router_width(const SjModel& m) { return panels(m.experts + (m.shared_inner ? 1 : 0)) * kPanel; }

inline float sigmoid(float x) {
  alignas(64) float e[kLanes];
  store(e, exp(all(-x)));
  return 1.0f / (1.0f + e[0]);
}

// The likeliest experts of one row, the lowest number among equals, and their weights. Uses up `scores`.
inline void choose_experts(const SjModel& m, float* scores, int32_t* chosen, float* weights) {
  constexpr float kNone = -3.0e38f;
  Lanes most = all(kNone), total = all(0.0f);
  for (int e = 0; e < m.experts; e += kLanes)
    most = max(most, below(load(scores + e), e, m.experts, all(kNone)));
  const Lanes top = all(largest(most));
  for (int e = 0; e < m.experts; e += kLanes) {
    const Lanes share = below(exp(sub(load(scores + e), top)), e, m.experts, all(0.0f));
    store(scores + e, share);
    total = add(total, share);
  }
  float divisor = sum(total), taken = 0.0f;
  for (int rank = 0; rank < m.experts_used; ++rank) {
    int best = 0;
    for (int e = 1; e < m.experts; ++e)
      if (scores[e] > scores[best]) best = e;
    chosen[rank] = best;
    weights[rank] = scores[best];
    taken += scores[best];
    scores[best] = -1.0f;
  }
  if (m.normalised) divisor = taken;
  for (int rank = 0; rank < m.experts_used; ++rank) weights[rank] /= divisor;
}

// Every row's choice, and its slots: one for each chosen expert, those of one expert side by side.
inline void route(const Step& step) {
  const SjModel& m = *step.model;
  Routing& to = step.space->routing;
  const int rows = step.batch->rows, width = router_width(m);
  for (int e = 0; e <= m.experts; ++e) to.first[e] = 0;
  for (int r = 0; r < rows; ++r) {
    float* scores = to.scores + long(r) * width;
    if (m.shared_inner) to.shared_weight[r] = sigmoid(scores[m.experts]);
    choose_experts(m, scores, to.chosen + r * m.experts_used, to.weight + r * m.experts_used);
    for (int rank = 0; rank < m.experts_used; ++rank) ++to.first[to.chosen[r * m.experts_used + rank] + 1];
  }
  for (int e = 0; e < m.experts; ++e) to.first[e + 1] += to.first[e];
  for (int choice = 0; choice < rows * m.experts_used; ++choice) {
    const int slot = to.first[to.chosen[choice]]++;
    to.slot[choice] = slot;
    to.row[slot] = choice / m.experts_used;
  }
  // Each first one has moved to the next expert's.
  for (int e = m.experts; e > 0; --e) to.first[e] = to.first[e - 1];
  to.first[0] = 0;
}

// Rows of a bf16 linear's part: some panels of matrix `number`, of those of `count` panels that lie one
// behind the other.
template <class Finish>
inline void apply_one(const Step& step, const SjLinear& l, int number, const float* x, int rows, int k_size,
                      int count, const SjRange& some, int member, const Finish& finish) {
  const Range mine = share(some, member, step.team->size());
  const long panel = long(k_size) * kPanel;
  const uint16_t* weights = static_cast<const uint16_t*>(l.panels) + number * count * panel;
  linear(x, rows, k_size, weights, panel, mine.begin, mine.end, finish);
}

inline void gather(const Step& step, int member) {
  const SjModel& m = *step.model;
  const Routing& to = step.space->routing;
  const Range mine = share(step.batch->rows * m.experts_used, member, step.team->size());
  for (int slot = mine.begin; slot < mine.end; ++slot) {
    const float* from = step.space->normed + long(to.row[slot]) * m.hidden;
    float* at = to.gathered + long(slot) * m.hidden;
    for (int i = 0; i < m.hidden; i += kLanes) store(at + i, load(from + i));
  }
}

inline void expert_gates(const Step& step, const SjLayer& l, int member) {
  const SjModel& m = *step.model;
  const Routing& to = step.space->routing;
  const int rows = step.batch->rows;
  const float* x = normed(step, rows, member);
  for (int e = 0; e < m.experts; ++e) {
    const int first = to.first[e], count = to.first[e + 1] - first;
    if (!count) continue;
    const float* own = rows == 1 ? x : to.gathered + long(first) * m.hidden;
    apply_one(step, l.gate_up, e, own, count, m.hidden, m.inner / 16, m.part.inner, member,
              [&](int r, int p, Lanes gates, Lanes ups) {
                store(step.space->inner + long(first + r) * m.inner + p * 16, gate(gates, ups));
              });
  }
  if (!m.shared_inner) return;
  apply_one(step, l.shared_gate_up, 0, x, rows, m.hidden, m.shared_inner / 16, m.part.shared, member,
            [&](int r, int p, Lanes gates, Lanes ups) {
              store(to.shared + long(r) * m.shared_inner + p * 16, gate(gates, ups));
            });
}

// A member has the same panels of every expert, so it can add them up without waiting for others.
inline void expert_sums(const Step& step, const SjLayer& l, int member) {
  const SjModel& m = *step.model;
  const Routing& to = step.space->routing;
  const int rows = step.batch->rows, count = panels(m.hidden), width = count * kPanel;
  const auto into = [&](float* out) {
    return [=](int r, int p, Lanes a, Lanes b) {
      store(out + long(r) * width + p * kPanel, a);
      store(out + long(r) * width + p * kPanel + 16, b);
    };
  };
  for (int e = 0; e < m.experts; ++e) {
    const int first = to.first[e];
    if (to.first[e + 1] == first) continue;
    apply_one(step, l.down, e, step.space->inner + long(first) * m.inner, to.first[e + 1] - first, m.inner,
              count, m.part.hidden, member, into(to.made + long(first) * width));
  }
  if (m.shared_inner)
    apply_one(step, l.shared_down, 0, to.shared, rows, m.shared_inner, count, m.part.hidden, member,
              into(to.shared_made));
  const Range mine = share(m.part.hidden, member, step.team->size());
  const int begin = mine.begin * kPanel, end = mine.end * kPanel < m.hidden ? mine.end * kPanel : m.hidden;
  for (int r = 0; r < rows; ++r) {
    for (int i = begin; i < end; i += kLanes) {
      Lanes total = all(0.0f);
      for (int choice = r * m.experts_used; choice < (r + 1) * m.experts_used; ++choice)
        total = fma(all(to.weight[choice]), load(to.made + long(to.slot[choice]) * width + i), total);
      if (m.shared_inner)
        total = fma(all(to.shared_weight[r]), load(to.shared_made + long(r) * width + i), total);
      float* at = step.space->residual + long(r) * m.hidden + i;
      store(at, add(load(at), total));
    }
  }
}

// x + experts(normed x), into the residual.
inline void experts(const Step& step, const SjLayer& l, int member) {
  const SjModel& m = *step.model;
  const int rows = step.batch->rows, width = router_width(m);
  apply_one(step, l.router, 0, normed(step, rows, member), rows, m.hidden, width / kPanel,
            {0, width / kPanel}, member, [&](int r, int p, Lanes a, Lanes b) {
              float* at = step.space->routing.scores + long(r) * width + p * kPanel;
              store(at, a);
              store(at + 16, b);
            });
  step.team->barrier();
  if (member == 0) route(step);
  step.team->barrier();
  if (rows > 1) {
    gather(step, member);
    step.team->barrier();
  }
  expert_gates(step, l, member);
  step.team->barrier();
  exchange(step, SJ_INNER, step.space->inner, rows * m.experts_used, member);
  if (m.shared_inner) exchange(step, SJ_SHARED, step.space->routing.shared, rows, member);
  expert_sums(step, l, member);
}

}  // namespace SJ_VARIANT
