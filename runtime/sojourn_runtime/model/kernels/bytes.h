// Linear layers over int8 weights: W8A16 multiplies float rows, W8A8 rows of bytes. Here are W8A16 whole and
// the exact sums of W8A8; its linear, which may take them from the matrix unit, is in `tiles.h`.
//
// A panel is the bytes of 32 outputs and, behind them, their 32 scales (float). W8A16: [k][32], the
// chain of FMAs of `linear.h` over whole numbers, scaled once at the end. W8A8: [k / 4][32][4], byte +
// 128 each (see ints.h); a row's bytes have one scale, which no other row has a part in, and its sum
// times 128 is taken off again.
#pragma once

#include "ints.h"
#include "linear.h"

namespace SJ_VARIANT {

inline long byte_panel(int k_size) { return long(k_size) * kPanel + kPanel * long(sizeof(float)); }

inline const float* scales_of(const void* panels, int panel, int k_size) {
  const char* begin = static_cast<const char*>(panels) + panel * byte_panel(k_size);
  return reinterpret_cast<const float*>(begin + long(k_size) * kPanel);
}

// One row as bytes: its largest magnitude becomes 127. Returns the scale; `offset` is 128 times the sum.
inline float quantise(const float* x, int k_size, Activation* bytes, int32_t& offset) {
  Lanes most = all(0.0f);
  for (int k = 0; k < k_size; k += kLanes) {
    const Lanes value = load(x + k);
    most = max(most, max(value, sub(all(0.0f), value)));
  }
  const float top = largest(most);
  // Below this the reciprocal overflows; such a row is zero to every weight it meets.
  const Lanes factor = all(top > 1e-30f ? 127.0f / top : 0.0f);
  Ints total = all_ints(0);
  for (int k = 0; k < k_size; k += kLanes) {
    const Ints whole = nearest(mul(load(x + k), factor));
    store_sixteen(bytes + k, whole);
    total = add(total, whole);
  }
  offset = 128 * sum(total);
  return top > 1e-30f ? top / 127.0f : 0.0f;
}

// As `tile`, with exact sums.
template <int R, int P>
__attribute__((noinline)) void byte_tile(const Activation* x, const uint8_t* w, int k_size, Ints* sums) {
  Ints acc[R][2 * P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int i = 0; i < 2 * P; ++i) acc[r][i] = all_ints(0);
  const long panel = byte_panel(k_size);
  for (int k = 0; k < k_size; k += 4) {
    const long next = ahead(long(k) * kPanel, panel, P);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const uint8_t* lines = w + p * panel + long(k) * kPanel;
      _mm_prefetch(reinterpret_cast<const char*>(lines + next), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(lines + 64 + next), _MM_HINT_T0);
      const Line first = load_line(lines), second = load_line(lines + 64);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Quad four = load_quad(x + long(r) * k_size + k);
        acc[r][2 * p] = dot(acc[r][2 * p], first, four);
        acc[r][2 * p + 1] = dot(acc[r][2 * p + 1], second, four);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int i = 0; i < 2 * P; ++i) sums[r * 2 * P + i] = acc[r][i];
}

template <int R>
inline void some_byte_rows(int rows, const Activation* x, const uint8_t* w, int k_size, Ints* sums) {
  if constexpr (R > 1) {
    if (rows < R) return some_byte_rows<R - 1>(rows, x, w, k_size, sums);
  }
  byte_tile<R, 1>(x, w, k_size, sums);
}

template <int P>
inline void some_byte_panels(int count, const Activation* x, const uint8_t* w, int k_size, Ints* sums) {
  if constexpr (P > 1) {
    if (count < P) return some_byte_panels<P - 1>(count, x, w, k_size, sums);
  }
  byte_tile<1, P>(x, w, k_size, sums);
}

// Rows of bytes, each with its scale and offset.
struct ByteRows {
  const Activation* values;
  const float* scales;
  const int32_t* offsets;
};

template <class Finish>
inline void linear_w8a16(const float* x, int rows, int k_size, const int8_t* weights, int begin, int end,
                         const Finish& finish) {
  const auto scaled = [&](int r, int p, Lanes first, Lanes second) {
    const float* scales = scales_of(weights, p, k_size);
    finish(r, p, mul(first, load(scales)), mul(second, load(scales + kLanes)));
  };
  linear(x, rows, k_size, weights, byte_panel(k_size), begin, end, scaled);
}

}  // namespace SJ_VARIANT
