// Attention of one row over its paged keys: online softmax over tiles of 64 keys at absolute positions.
//
// A block of the KV cache is one tile. Its keys lie dimension by dimension ([head_dim][64]), so lanes
// run along the keys and scores need no sum across lanes; its values lie key by key ([64][head_dim]).
// What a tile holds beyond the row's own position, or before its window, is never read into the result, so
// stale or foreign bytes there cannot matter.
#pragma once

#include "exp.h"

namespace SJ_VARIANT {

constexpr int kTile = 64;
constexpr float kLowest = -3.0e38f;

// `G` query heads that share one key head. `q`: [G][head_dim], `out`: [G][head_dim], both float.
// The row sees the positions `first` to `position`. `keys(t)` and `values(t)` give the tile's bytes.
template <int G, class Keys, class Values>
inline void attend(const float* q, int head_dim, float scale, int first, int position,
                   const Keys& keys, const Values& values, float* out) {
  float most[G], total[G];
  alignas(64) float weight[G][kTile];
  for (int g = 0; g < G; ++g) {
    most[g] = kLowest;
    total[g] = 0.0f;
    for (int d = 0; d < head_dim; d += kLanes) store(out + g * head_dim + d, all(0.0f));
  }
  for (int t = first / kTile; t * kTile <= position; ++t) {
    const int hidden = first > t * kTile ? first - t * kTile : 0;
    const int valid = position + 1 - t * kTile < kTile ? position + 1 - t * kTile : kTile;
    const uint16_t* k = keys(t);
    for (int part = 0; part < kTile; part += 2 * kLanes) {
      Lanes score[G][2];
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) score[g][0] = score[g][1] = all(0.0f);
      for (int d = 0; d < head_dim; ++d) {
        const Lanes k0 = load_bf16(k + d * kTile + part);
        const Lanes k1 = load_bf16(k + d * kTile + part + kLanes);
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          const Lanes value = all(q[g * head_dim + d]);
          score[g][0] = fma(value, k0, score[g][0]);
          score[g][1] = fma(value, k1, score[g][1]);
        }
      }
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        store(weight[g] + part, mul(score[g][0], all(scale)));
        store(weight[g] + part + kLanes, mul(score[g][1], all(scale)));
      }
    }
    for (int g = 0; g < G; ++g) {
      Lanes s[4];
      for (int i = 0; i < 4; ++i) {
        s[i] = below(load(weight[g] + i * kLanes), i * kLanes, valid, all(kLowest));
        if (hidden) s[i] = below(all(kLowest), i * kLanes, hidden, s[i]);
      }
      const float tile_most = largest(max(max(s[0], s[1]), max(s[2], s[3])));
      const float next = tile_most > most[g] ? tile_most : most[g];
      for (int i = 0; i < 4; ++i) {
        s[i] = below(exp(sub(s[i], all(next))), i * kLanes, valid, all(0.0f));
        if (hidden) s[i] = below(all(0.0f), i * kLanes, hidden, s[i]);
        store(weight[g] + i * kLanes, s[i]);
      }
      // The first tile has nothing to rescale: total and out are zero.
      const Lanes shrink = exp(all(most[g] - next));
      alignas(64) float factor[kLanes];
      store(factor, shrink);
      total[g] = __builtin_fmaf(total[g], factor[0], sum(add(add(s[0], s[1]), add(s[2], s[3]))));
      most[g] = next;
      for (int d = 0; d < head_dim; d += kLanes) {
        float* at = out + g * head_dim + d;
        store(at, mul(load(at), shrink));
      }
    }
    const uint16_t* v = values(t);
    for (int d = 0; d < head_dim; d += 2 * kLanes) {
      Lanes acc[G][2];
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        acc[g][0] = load(out + g * head_dim + d);
        acc[g][1] = load(out + g * head_dim + d + kLanes);
      }
      for (int j = hidden; j < valid; ++j) {
        const Lanes v0 = load_bf16(v + j * head_dim + d);
        const Lanes v1 = load_bf16(v + j * head_dim + d + kLanes);
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          const Lanes value = all(weight[g][j]);
          acc[g][0] = fma(value, v0, acc[g][0]);
          acc[g][1] = fma(value, v1, acc[g][1]);
        }
      }
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        store(out + g * head_dim + d, acc[g][0]);
        store(out + g * head_dim + d + kLanes, acc[g][1]);
      }
    }
  }
  for (int g = 0; g < G; ++g) {
    for (int d = 0; d < head_dim; d += kLanes) {
      float* at = out + g * head_dim + d;
      store(at, round_bf16(div(load(at), all(total[g]))));
    }
  }
}

}  // namespace SJ_VARIANT
