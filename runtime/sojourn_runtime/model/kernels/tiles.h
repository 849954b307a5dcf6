// Linears through the matrix unit (AMX): sixteen rows by sixteen outputs at a time, all of K in order.
//
// An output is made of its own row and column alone, so the rows beside it change no bit. Sums of bytes
// are exact, so W8A8 has the bits of every other variant. Of bf16 the unit sums 32 products of K as two
// chains, one of the even ones and one of the odd ones, and adds both to the sum so far: a class of its own,
// `pairs`, which FMAs imitate to the bit (`paired_tile`) where rows are few or there is no such unit. Experts
// stay with the plain FMAs. The linear of W8A8 is here too, since it chooses between the unit and `byte_tile`.
#pragma once

#include "bytes.h"
#include "workspace.h"

namespace SJ_VARIANT {

constexpr int kTileRows = 16, kByteStep = 64;

inline int whole_steps(int k_size) { return (k_size + kPairStep - 1) / kPairStep; }

#if defined(__AMX_TILE__)

// From this many rows on tiles are faster; below, reading the weights is what takes the time.
constexpr int kRowsForTiles = 12, kRowsForByteTiles = 16;

// The thread's tile registers, while it lives.
struct Tiles {
  Tiles() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t width[16] = {};
      uint8_t rows[16] = {};
    } shape;
    for (int i = 0; i < 8; ++i) {
      shape.width[i] = 64;
      shape.rows[i] = kTileRows;
    }
    memory_settles(&shape);
    _tile_loadconfig(&shape);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // The intrinsics of GCC 12 do not say that they read memory.
  static void memory_settles(const void* p) { asm volatile("" ::"r"(p) : "memory"); }
};

inline bool by_tiles(const Step& step, int rows) { return step.space->pairs && rows >= kRowsForTiles; }

// A row of bf16 values as bf16, zeros up to a whole step.
inline void pack_row(const float* x, int k_size, uint16_t* out) {
  const int end = whole_steps(k_size) * kPairStep;
  for (int k = 0; k < end; k += kLanes) {
    const __m512i bits = k < k_size ? _mm512_castps_si512(load(x + k).v) : _mm512_setzero_si512();
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k), _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
  }
}

// One step of a panel as the unit wants it: sixteen pairs of k for the first sixteen outputs, then for the
// others.
inline void pair_up(const uint16_t* panel, int k_size, int step, uint16_t* out) {
  for (int pair = 0; pair < kTileRows; ++pair) {
    const int k = step * kPairStep + 2 * pair;
    const uint16_t* lines = panel + long(k) * kPanel;
    _mm_prefetch(reinterpret_cast<const char*>(lines) + kPrefetchAhead, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(lines + kPanel) + kPrefetchAhead, _MM_HINT_T0);
    const __m512i even = k < k_size ? _mm512_loadu_si512(lines) : _mm512_setzero_si512();
    const __m512i odd = k < k_size ? _mm512_loadu_si512(lines + kPanel) : _mm512_setzero_si512();
    uint16_t* to = out + pair * 32;
    _mm512_storeu_si512(to, _mm512_mask_blend_epi16(0xaaaaaaaa, even, _mm512_slli_epi32(odd, 16)));
    _mm512_storeu_si512(to + 512, _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(even, 16), odd));
  }
}

// Rows `top` and on, 32 at most, out of the four accumulators: first and second sixteen outputs of rows 0 to
// 15, then of the others.
template <class Take>
inline void take_sums(int top, int rows, bool more, const Take& take) {
  alignas(64) int32_t sums[4][kTileRows][kLanes];
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  if (more) {
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
  }
  Tiles::memory_settles(sums);
  const int count = rows - top < 2 * kTileRows ? rows - top : 2 * kTileRows;
  for (int r = 0; r < count; ++r) {
    const int half = r / kTileRows * 2;
    take(top + r, _mm512_load_si512(sums[half][r % kTileRows]), _mm512_load_si512(sums[half + 1][r % kTileRows]));
  }
}

inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Panels `begin` to `end` for packed rows, of which there is room for a whole tile; `paired` is scratch.
template <class Finish>
inline void linear_tiles(const uint16_t* x, int rows, int k_size, const uint16_t* weights, int begin, int end,
                         uint16_t* paired, const Finish& finish) {
  const int steps = whole_steps(k_size);
  const long stride = long(steps) * kPairStep, line = stride * 2;
  for (int p = begin; p < end; ++p) {
    const uint16_t* panel = weights + long(p) * k_size * kPanel;
    for (int top = 0; top < rows; top += 2 * kTileRows) {
      const bool more = rows - top > kTileRows;
      const uint16_t *upper = x + top * stride, *lower = upper + kTileRows * stride;
      zero_sums();
      for (int s = 0; s < steps; ++s) {
        if (top == 0) {
          // One step ahead, so that nobody waits for what was just stored.
          if (s == 0) pair_up(panel, k_size, 0, paired);
          if (s + 1 < steps) pair_up(panel, k_size, s + 1, paired + (s + 1) * 1024);
          Tiles::memory_settles(paired);
        }
        _tile_loadd(6, paired + s * 1024, 64);
        _tile_loadd(7, paired + s * 1024 + 512, 64);
        _tile_loadd(4, upper + s * kPairStep, line);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (!more) continue;
        _tile_loadd(5, lower + s * kPairStep, line);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      take_sums(top, rows, more, [&](int r, __m512i one, __m512i two) {
        finish(r, p, Lanes{_mm512_castsi512_ps(one)}, Lanes{_mm512_castsi512_ps(two)});
      });
    }
  }
}

// The sums of `byte_tile` for panels `begin` to `end`; false if the shape is not for tiles.
template <class Finish>
inline bool byte_sums_by_tiles(const Activation* x, int rows, int k_size, const uint8_t* weights, int begin,
                               int end, const Finish& finish) {
  if (rows < kRowsForByteTiles || k_size % kByteStep) return false;
  Tiles::memory_settles(x);
  const long panel = byte_panel(k_size);
  for (int p = begin; p < end; ++p) {
    for (int top = 0; top < rows; top += 2 * kTileRows) {
      const bool more = rows - top > kTileRows;
      const Activation *upper = x + long(top) * k_size, *lower = upper + long(kTileRows) * k_size;
      zero_sums();
      for (int k = 0; k < k_size; k += kByteStep) {
        const uint8_t* lines = weights + p * panel + long(k) * kPanel;
        _tile_loadd(6, lines, 128);
        _tile_loadd(7, lines + 64, 128);
        _tile_loadd(4, upper + k, k_size);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        if (!more) continue;
        _tile_loadd(5, lower + k, k_size);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
      }
      take_sums(top, rows, more, [&](int r, __m512i one, __m512i two) { finish(r, p, Ints{one}, Ints{two}); });
    }
  }
  return true;
}

#else

struct Tiles {
  Tiles() {}
};

inline bool by_tiles(const Step&, int) { return false; }
inline void pack_row(const float*, int, uint16_t*) {}

template <class Finish>
inline void linear_tiles(const uint16_t*, int, int, const uint16_t*, int, int, uint16_t*, const Finish&) {}

template <class Finish>
inline bool byte_sums_by_tiles(const Activation*, int, int, const uint8_t*, int, int, const Finish&) {
  return false;
}

#endif

// Rows of bytes, each with its scale and offset, through panels `begin` to `end`.
template <class Finish>
inline void linear_w8a8(const ByteRows& x, int rows, int k_size, const uint8_t* weights, int begin, int end,
                        const Finish& finish) {
  const auto scaled = [&](int r, int p, Ints first, Ints second) {
    const float* scales = scales_of(weights, p, k_size);
    const Ints offset = all_ints(x.offsets[r]);
    const Lanes own = all(x.scales[r]);
    finish(r, p, mul(mul(to_lanes(sub(first, offset)), own), load(scales)),
           mul(mul(to_lanes(sub(second, offset)), own), load(scales + kLanes)));
  };
  if (byte_sums_by_tiles(x.values, rows, k_size, weights, begin, end, scaled)) return;
  const long panel = byte_panel(k_size);
  Ints sums[kMaxSums];
  if (rows == 1) {
    for (int p = begin, count; p < end; p += count) {
      count = even_share(end - p);
      some_byte_panels<kMaxPanels>(count, x.values, weights + p * panel, k_size, sums);
      for (int q = 0; q < count; ++q) scaled(0, p + q, sums[2 * q], sums[2 * q + 1]);
    }
    return;
  }
  for (int p = begin; p < end; ++p) {
    for (int top = 0; top < rows; top += kByteRows) {
      const int count = rows - top < kByteRows ? rows - top : kByteRows;
      const Activation* bytes = x.values + long(top) * k_size;
      some_byte_rows<kByteRows>(count, bytes, weights + p * panel, k_size, sums);
      for (int r = 0; r < count; ++r) scaled(top + r, p, sums[2 * r], sums[2 * r + 1]);
    }
  }
}

}  // namespace SJ_VARIANT
