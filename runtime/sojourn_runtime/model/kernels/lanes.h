// Sixteen float lanes on every machine: one 512-bit register, or two of 256 bits.
//
// All variants compile the same kernels over this type, lane by lane with the same IEEE operations, so
// they give equal bits. Every multiply-add is explicit; the files are compiled with -ffp-contract=off
// and without -ffast-math.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#if !defined(SJ_VARIANT)
#error "SJ_VARIANT names the namespace of this variant, which keeps the linker from mixing instruction sets"
#endif

namespace SJ_VARIANT {

constexpr int kLanes = 16;

#if defined(__AVX512F__)

constexpr int kMaxRows = 12;      // 24 accumulators of the 32 registers
constexpr int kMaxPanels = 8;     // of a single row: as many streams as the memory likes, 16 accumulators

struct Lanes { __m512 v; };

inline Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
inline Lanes all(float a) { return {_mm512_set1_ps(a)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }

// Thirty-two bf16 as they lie in a panel: the even ones are the first sixteen, the odd ones the second.
inline void load_pair(const uint16_t* p, Lanes& even, Lanes& odd) {
  const __m512i both = _mm512_loadu_si512(p);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  odd.v = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(int(0xffff0000u))));
}

// Thirty-two bytes in order.
inline __m512 widen_bytes(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void load_pair(const int8_t* p, Lanes& first, Lanes& second) {
  first.v = widen_bytes(p);
  second.v = widen_bytes(p + 16);
}

inline Lanes load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}

// a * 2^n where n is the integer in the low bits of `shifted` (see exp.h); n stays in the normal range.
inline Lanes scale_by_power(Lanes a, Lanes shifted) {
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), n))};
}

// Lanes `first`, `first + 1`, ... of `a` where their index is below `limit`, else `other`.
inline Lanes below(Lanes a, int first, int limit, Lanes other) {
  const int count = limit - first;
  const __mmask16 keep = count >= kLanes ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
  return {_mm512_mask_blend_ps(keep, other.v, a.v)};
}

// Rounded to the nearest bf16 (ties to even), kept as float. NaN stays NaN for the values met here.
inline Lanes round_bf16(Lanes a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff)));
  return {_mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(int(0xffff0000u))))};
}

inline __m256 fold_add(Lanes a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a.v),
                       _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)));
}
inline __m256 fold_max(Lanes a) {
  return _mm256_max_ps(_mm512_castps512_ps256(a.v),
                       _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)));
}

#else

constexpr int kMaxRows = 3;  // 12 accumulators of the 16 registers
constexpr int kMaxPanels = 2;

struct Lanes { __m256 lo, hi; };

inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Lanes a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
inline Lanes all(float a) { const __m256 v = _mm256_set1_ps(a); return {v, v}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Lanes min(Lanes a, Lanes b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }

inline void split_pair(const uint16_t* p, __m256& even, __m256& odd) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
  odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(int(0xffff0000u))));
}
inline void load_pair(const uint16_t* p, Lanes& even, Lanes& odd) {
  split_pair(p, even.lo, odd.lo);
  split_pair(p + 16, even.hi, odd.hi);
}

inline __m256 widen_bytes(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline void load_pair(const int8_t* p, Lanes& first, Lanes& second) {
  first = {widen_bytes(p), widen_bytes(p + 8)};
  second = {widen_bytes(p + 16), widen_bytes(p + 24)};
}

inline __m256 widen(const uint16_t* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline Lanes load_bf16(const uint16_t* p) { return {widen(p), widen(p + 8)}; }

inline __m256 scale_half(__m256 a, __m256 shifted) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), n));
}
inline Lanes scale_by_power(Lanes a, Lanes shifted) {
  return {scale_half(a.lo, shifted.lo), scale_half(a.hi, shifted.hi)};
}

inline __m256 blend_half(__m256 a, int first, int limit, __m256 other) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i keep = _mm256_cmpgt_epi32(_mm256_set1_epi32(limit - first), index);
  return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(keep));
}
inline Lanes below(Lanes a, int first, int limit, Lanes other) {
  return {blend_half(a.lo, first, limit, other.lo), blend_half(a.hi, first + 8, limit, other.hi)};
}

inline __m256 round_half(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff)));
  return _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32(int(0xffff0000u))));
}
inline Lanes round_bf16(Lanes a) { return {round_half(a.lo), round_half(a.hi)}; }

inline __m256 fold_add(Lanes a) { return _mm256_add_ps(a.lo, a.hi); }
inline __m256 fold_max(Lanes a) { return _mm256_max_ps(a.lo, a.hi); }

#endif

// The sixteen lanes added as a tree: l + (l+8), then l + (l+4), l + (l+2), l + (l+1).
inline float sum(Lanes a) {
  const __m256 eight = fold_add(a);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

inline float largest(Lanes a) {
  const __m256 eight = fold_max(a);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

inline float from_bf16(uint16_t bits) {
  union { uint32_t u; float f; } x = {uint32_t(bits) << 16};
  return x.f;
}

inline uint16_t to_bf16(float value) {
  union { float f; uint32_t u; } x = {value};
  return uint16_t((x.u + 0x7fff + ((x.u >> 16) & 1)) >> 16);
}

}  // namespace SJ_VARIANT
