// Linear layers over bf16 weights: each output is one chain of FMAs in the order of K, whatever rows
// share the pass.
//
// Weights lie in panels of 32 outputs: [panel][k][32], where outputs j and 16 + j are neighbours, so that
// one load and two cheap operations widen 32 of them. Lanes run along the outputs, so nothing is ever
// summed across lanes.
#pragma once

#include "lanes.h"

namespace SJ_VARIANT {

constexpr int kPanel = 32;
// Hardware prefetch stops at page borders (the weights are mapped from a file in 4 KiB pages); this
// steps over them. In elements.
constexpr int kPrefetchAhead = 2048;

// `R` rows of `x` against `P` panels; `finish(row, panel, first16, second16)` takes the sums.
template <int R, int P, class Finish>
inline __attribute__((always_inline)) void tile(const float* x, long stride, const uint16_t* w, int k_size,
                                                const Finish& finish) {
  Lanes acc[R][2 * P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < 2 * P; ++i) acc[r][i] = all(0.0f);
  const long panel = long(k_size) * kPanel;
  for (int k = 0; k < k_size; ++k) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const uint16_t* row = w + p * panel + long(k) * kPanel;
      _mm_prefetch(reinterpret_cast<const char*>(row + kPrefetchAhead), _MM_HINT_T0);
      Lanes first, second;
      load_pair(row, first, second);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Lanes value = all(x[r * stride + k]);
        acc[r][2 * p] = fma(value, first, acc[r][2 * p]);
        acc[r][2 * p + 1] = fma(value, second, acc[r][2 * p + 1]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) finish(r, p, acc[r][2 * p], acc[r][2 * p + 1]);
}

template <int R, class Finish>
inline void some_rows(int rows, const float* x, long stride, const uint16_t* w, int k_size,
                      const Finish& finish) {
  if constexpr (R > 1) {
    if (rows < R) return some_rows<R - 1>(rows, x, stride, w, k_size, finish);
  }
  tile<R, 1>(x, stride, w, k_size, finish);
}

// Panels `begin` to `end` for all rows; `finish(row, panel, first16, second16)`.
template <class Finish>
inline void linear(const float* x, int rows, int k_size, const uint16_t* weights, int begin, int end,
                   const Finish& finish) {
  const long panel = long(k_size) * kPanel;
  int p = begin;
  if (rows == 1) {
    for (; p + kPanelsForOneRow <= end; p += kPanelsForOneRow)
      tile<1, kPanelsForOneRow>(x, k_size, weights + p * panel, k_size,
                                [&](int r, int q, Lanes a, Lanes b) { finish(r, p + q, a, b); });
  }
  for (; p < end; ++p) {
    for (int first = 0; first < rows; first += kMaxRows) {
      const int count = rows - first < kMaxRows ? rows - first : kMaxRows;
      some_rows<kMaxRows>(count, x + long(first) * k_size, k_size, weights + p * panel, k_size,
                          [&](int r, int, Lanes a, Lanes b) { finish(first + r, p, a, b); });
    }
  }
}

}  // namespace SJ_VARIANT
