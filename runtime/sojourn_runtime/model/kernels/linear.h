// Linear layers over float rows: each output is one chain of FMAs in the order of K, whatever rows share
// the pass; or, with `Pairs`, a sum in the order of the matrix unit (see tiles.h), whose bits it gives.
//
// Weights lie in panels of 32 outputs: [panel][k][32]. Of bf16 ones, outputs j and 16 + j are neighbours,
// so that one load and two cheap operations widen 32 of them; bytes lie in order (see bytes.h). Lanes run
// along the outputs, so nothing is ever summed across lanes.
#pragma once

#include "lanes.h"

namespace SJ_VARIANT {

constexpr int kPanel = 32;
constexpr int kPairStep = 32;  // K of one instruction of the matrix unit
// Hardware prefetch stops at page borders (the weights are mapped from a file in 4 KiB pages); this
// steps over them. In bytes.
constexpr int kPrefetchAhead = 4096;

// How far ahead of byte `at` of a panel to prefetch. A single row reads `count` panels side by side, so beyond
// a panel's end the stream goes on in the next group. Measured with one row, which memory alone bounds: this
// and eight streams in place of four gave 7 % (W8A8) to 12 % (W8A16); compute and huge pages gave nothing.
inline long ahead(long at, long panel, int count) {
  return at + kPrefetchAhead < panel ? kPrefetchAhead : kPrefetchAhead + (count - 1) * panel;
}

// Panels of the next pass of a single row, when `left` remain: even shares, so that no pass has few streams.
inline int even_share(int left) {
  const int passes = (left + kMaxPanels - 1) / kMaxPanels;
  return (left + passes - 1) / passes;
}

constexpr int kMaxSums = 2 * (kMaxRows > kMaxPanels ? kMaxRows : kMaxPanels);

// `R` rows of `x` against `P` panels of `panel` elements each; `sums`: [R][P][2]. Not inlined: one copy
// serves all linears, or compiling would take minutes.
template <int R, int P, class Weight>
__attribute__((noinline)) void tile(const float* x, const Weight* w, int k_size, long panel, Lanes* sums) {
  Lanes acc[R][2 * P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int i = 0; i < 2 * P; ++i) acc[r][i] = all(0.0f);
  for (int k = 0; k < k_size; ++k) {
    const long next = ahead(long(k) * kPanel * sizeof(Weight), panel * sizeof(Weight), P);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const Weight* row = w + p * panel + long(k) * kPanel;
      _mm_prefetch(reinterpret_cast<const char*>(row) + next, _MM_HINT_T0);
      Lanes first, second;
      load_pair(row, first, second);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Lanes value = all(x[long(r) * k_size + k]);
        acc[r][2 * p] = fma(value, first, acc[r][2 * p]);
        acc[r][2 * p + 1] = fma(value, second, acc[r][2 * p + 1]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int i = 0; i < 2 * P; ++i) sums[r * 2 * P + i] = acc[r][i];
}

// As `tile`, but of each 32 of K the even ones are one chain and the odd ones another; their sum joins the
// sum so far. The unit takes denormals for zeros, so this does.
template <int R, int P>
__attribute__((noinline)) void paired_tile(const float* x, const uint16_t* w, int k_size, long panel, Lanes* sums) {
  constexpr int kCount = R * 2 * P;
  const unsigned control = _mm_getcsr();
  _mm_setcsr(control | 0x8040);
  for (int i = 0; i < kCount; ++i) sums[i] = all(0.0f);
  Lanes even[kCount], acc[kCount];
  for (int begin = 0; begin < k_size; begin += kPairStep) {
    const int end = begin + kPairStep < k_size ? begin + kPairStep : k_size;
    for (int odd = 0; odd < 2; ++odd) {
#pragma GCC unroll 32
      for (int i = 0; i < kCount; ++i) acc[i] = all(0.0f);
      for (int k = begin + odd; k < end; k += 2) {
        const long next = ahead(long(k) * kPanel * sizeof(uint16_t), panel * sizeof(uint16_t), P);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          const uint16_t* row = w + p * panel + long(k) * kPanel;
          _mm_prefetch(reinterpret_cast<const char*>(row) + next, _MM_HINT_T0);
          Lanes first, second;
          load_pair(row, first, second);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            const Lanes value = all(x[long(r) * k_size + k]);
            acc[r * 2 * P + 2 * p] = fma(value, first, acc[r * 2 * P + 2 * p]);
            acc[r * 2 * P + 2 * p + 1] = fma(value, second, acc[r * 2 * P + 2 * p + 1]);
          }
        }
      }
      if (odd) break;
#pragma GCC unroll 32
      for (int i = 0; i < kCount; ++i) even[i] = acc[i];
    }
#pragma GCC unroll 32
    for (int i = 0; i < kCount; ++i) sums[i] = add(sums[i], add(even[i], acc[i]));
  }
  _mm_setcsr(control);
}

template <bool Pairs, int R, int P, class Weight>
inline void some_tile(const float* x, const Weight* w, int k_size, long panel, Lanes* sums) {
  if constexpr (Pairs) paired_tile<R, P>(x, w, k_size, panel, sums);
  else tile<R, P>(x, w, k_size, panel, sums);
}

template <bool Pairs, int R, class Weight>
inline void some_rows(int rows, const float* x, const Weight* w, int k_size, long panel, Lanes* sums) {
  if constexpr (R > 1) {
    if (rows < R) return some_rows<Pairs, R - 1>(rows, x, w, k_size, panel, sums);
  }
  some_tile<Pairs, R, 1>(x, w, k_size, panel, sums);
}

template <bool Pairs, int P, class Weight>
inline void some_panels(int count, const float* x, const Weight* w, int k_size, long panel, Lanes* sums) {
  if constexpr (P > 1) {
    if (count < P) return some_panels<Pairs, P - 1>(count, x, w, k_size, panel, sums);
  }
  some_tile<Pairs, 1, P>(x, w, k_size, panel, sums);
}

// Panels `begin` to `end` for all rows; `finish(row, panel, first16, second16)` takes the sums.
template <bool Pairs = false, class Weight, class Finish>
inline void linear(const float* x, int rows, int k_size, const Weight* weights, long panel, int begin,
                   int end, const Finish& finish) {
  Lanes sums[kMaxSums];
  if (rows == 1) {
    for (int p = begin, count; p < end; p += count) {
      count = even_share(end - p);
      some_panels<Pairs, kMaxPanels>(count, x, weights + p * panel, k_size, panel, sums);
      for (int q = 0; q < count; ++q) finish(0, p + q, sums[2 * q], sums[2 * q + 1]);
    }
    return;
  }
  for (int p = begin; p < end; ++p) {
    for (int top = 0; top < rows; top += kMaxRows) {
      const int count = rows - top < kMaxRows ? rows - top : kMaxRows;
      some_rows<Pairs, kMaxRows>(count, x + long(top) * k_size, weights + p * panel, k_size, panel, sums);
      for (int r = 0; r < count; ++r) finish(top + r, p, sums[2 * r], sums[2 * r + 1]);
    }
  }
}

}  // namespace SJ_VARIANT
