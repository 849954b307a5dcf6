// The C interface of the CPU kernels; `model/native.py` mirrors these structs with ctypes.
//
// All weights are bf16 in panels (see linear.h), all norms and biases float. Pointers stay the caller's.
#pragma once

#include <stdint.h>

#pragma GCC visibility push(default)
extern "C" {

struct SjLayer {
  const float* attention_norm;  // [hidden]
  const uint16_t* qkv;          // panels of heads*head_dim + 2*kv_heads*head_dim outputs
  const float* qkv_bias;        // or null
  const float* q_norm;          // [head_dim], or null
  const float* k_norm;          // [head_dim], or null
  const uint16_t* attention_out;
  const float* mlp_norm;
  const uint16_t* gate_up;  // each panel: 16 rows of gate, then the same 16 of up
  const uint16_t* down;
};

struct SjModel {
  int32_t layer_count, hidden, heads, kv_heads, head_dim, inner, vocab;
  float epsilon, score_scale;
  const double* rope_frequencies;  // [head_dim / 2], radians per position
  const uint16_t* embedding;       // panels
  const uint16_t* head;            // panels; the embedding's when tied
  const float* final_norm;
  const struct SjLayer* layers;
};

struct SjBatch {
  int32_t rows, wanted_count;
  const int32_t* tokens;       // [rows]
  const int32_t* positions;    // [rows]
  const int32_t* table_start;  // [rows]: where in `blocks` the row's sequence begins
  const int32_t* blocks;       // block numbers of all sequences, one after the other
  const int32_t* wanted;       // [wanted_count]: rows whose logits are returned
  float* logits;               // [wanted_count][vocab]
  uint8_t* kv;                 // blocks of [layers][2][kv_heads][64 * head_dim] bf16
  const volatile int32_t* stop;  // or null; read every four layers
  int32_t (*poll)(void);         // or null; called where `stop` is read, non-zero means stop
};

enum SjVariant { SJ_AUTO = 0, SJ_AVX2 = 1, SJ_AVX512 = 2 };

struct SjEngine;

// Null if the processor lacks the variant.
struct SjEngine* sj_open(const struct SjModel* model, int32_t threads, int32_t variant);
int32_t sj_variant(const struct SjEngine* engine);
// 0: done. 1: stopped on request; no logits, and the rows' KV counts as unwritten. 2: out of memory.
int32_t sj_forward(struct SjEngine* engine, const struct SjBatch* batch);
void sj_close(struct SjEngine* engine);

struct SjSampling {
  uint64_t seed;
  int32_t choice, position;
  float temperature;  // 0: the likeliest token, the lowest id among equals
  int32_t top_k;      // 0: off
  float top_p, min_p;
};

int32_t sj_sample(const float* logits, int32_t vocab, const struct SjSampling* sampling);
}
#pragma GCC visibility pop
