// Sixteen int32 lanes, and the products of bytes that W8A8 is made of.
//
// Weights are stored as byte + 128, so that every machine may read them as unsigned. VNNI multiplies
// unsigned by signed bytes; the others split a line into its even and odd bytes as int16 and use
// pmaddwd, which cannot saturate (pmaddubsw can: 255 * 127 * 2 is beyond int16). All sums are exact in
// int32, whatever their order, so the four forms agree in every bit.
#pragma once

#include <string.h>

#include "lanes.h"

namespace SJ_VARIANT {

// The four neighbouring bytes or int16 of one row, to be put into every lane.
inline int32_t four_bytes(const void* p) {
  int32_t bits;
  memcpy(&bits, p, sizeof bits);
  return bits;
}

#if defined(__AVX512F__)

struct Ints { __m512i v; };

inline Ints all_ints(int32_t a) { return {_mm512_set1_epi32(a)}; }
inline Ints add(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Ints sub(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline Lanes to_lanes(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Ints nearest(Lanes a) { return {_mm512_cvtps_epi32(a.v)}; }  // ties to even
inline __m256i fold(Ints a) {
  return _mm256_add_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1));
}

#else

struct Ints { __m256i lo, hi; };

inline Ints all_ints(int32_t a) { const __m256i v = _mm256_set1_epi32(a); return {v, v}; }
inline Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline Ints sub(Ints a, Ints b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
inline Lanes to_lanes(Ints a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline Ints nearest(Lanes a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
inline __m256i fold(Ints a) { return _mm256_add_epi32(a.lo, a.hi); }

#endif

inline int32_t sum(Ints a) {
  alignas(32) int32_t eight[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(eight), fold(a));
  int32_t total = 0;
  for (const int32_t one : eight) total += one;
  return total;
}

// `Line`: four weights of each of sixteen outputs. `Quad`: the four activations that meet them.
#if defined(__AVX512VNNI__)

using Activation = int8_t;
constexpr int kByteRows = kMaxRows;
struct Line { __m512i v; };
struct Quad { __m512i v; };

inline Line load_line(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Quad load_quad(const Activation* p) { return {_mm512_set1_epi32(four_bytes(p))}; }
inline Ints dot(Ints acc, const Line& w, const Quad& x) { return {_mm512_dpbusd_epi32(acc.v, w.v, x.v)}; }
inline void store_sixteen(Activation* p, Ints a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

#elif defined(__AVXVNNI__)

using Activation = int8_t;
constexpr int kByteRows = kMaxRows;
struct Line { __m256i lo, hi; };
struct Quad { __m256i v; };

inline Line load_line(const uint8_t* p) {
  const __m256i* at = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
inline Quad load_quad(const Activation* p) { return {_mm256_set1_epi32(four_bytes(p))}; }
inline Ints dot(Ints acc, const Line& w, const Quad& x) {
  return {_mm256_dpbusd_avx_epi32(acc.lo, w.lo, x.v), _mm256_dpbusd_avx_epi32(acc.hi, w.hi, x.v)};
}
inline void store_sixteen(Activation* p, Ints a) {
  // packs works in halves of 128 bits; the permutation puts the sixteen in order again.
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

#else

// Of each four, the even ones come first: 0, 2, 1, 3, as `Line` splits its bytes.
using Activation = int16_t;

inline void store_words(Activation* p, __m256i words) {
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2,
                                         3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_shuffle_epi8(words, order));
}

#if defined(__AVX512F__)

constexpr int kByteRows = kMaxRows;
struct Line { __m512i even, odd; };
struct Quad { __m512i even, odd; };

inline Line load_line(const uint8_t* p) {
  const __m512i v = _mm512_loadu_si512(p);
  return {_mm512_and_si512(v, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(v, 8)};
}
inline Quad load_quad(const Activation* p) {
  return {_mm512_set1_epi32(four_bytes(p)), _mm512_set1_epi32(four_bytes(p + 2))};
}
inline Ints dot(Ints acc, const Line& w, const Quad& x) {
  const __m512i two = _mm512_add_epi32(_mm512_madd_epi16(w.even, x.even), _mm512_madd_epi16(w.odd, x.odd));
  return {_mm512_add_epi32(acc.v, two)};
}
inline void store_sixteen(Activation* p, Ints a) { store_words(p, _mm512_cvtepi32_epi16(a.v)); }

#else

constexpr int kByteRows = 2;  // a line takes four registers beside eight accumulators
struct Line { __m256i even[2], odd[2]; };
struct Quad { __m256i even, odd; };

inline Line load_line(const uint8_t* p) {
  const __m256i* at = reinterpret_cast<const __m256i*>(p);
  const __m256i lo = _mm256_loadu_si256(at), hi = _mm256_loadu_si256(at + 1), low = _mm256_set1_epi16(0xff);
  return {{_mm256_and_si256(lo, low), _mm256_and_si256(hi, low)},
          {_mm256_srli_epi16(lo, 8), _mm256_srli_epi16(hi, 8)}};
}
inline Quad load_quad(const Activation* p) {
  return {_mm256_set1_epi32(four_bytes(p)), _mm256_set1_epi32(four_bytes(p + 2))};
}
inline __m256i half_dot(const Line& w, int half, const Quad& x) {
  return _mm256_add_epi32(_mm256_madd_epi16(w.even[half], x.even), _mm256_madd_epi16(w.odd[half], x.odd));
}
inline Ints dot(Ints acc, const Line& w, const Quad& x) {
  return {_mm256_add_epi32(acc.lo, half_dot(w, 0, x)), _mm256_add_epi32(acc.hi, half_dot(w, 1, x))};
}
inline void store_sixteen(Activation* p, Ints a) {
  store_words(p, _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8));
}

#endif
#endif

}  // namespace SJ_VARIANT
