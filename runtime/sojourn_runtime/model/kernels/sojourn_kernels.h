// The C interface of the CPU kernels; `model/native.py` mirrors these structs with ctypes.
//
// All matrices lie in panels (see linear.h and bytes.h), all norms and biases are float. Pointers stay the
// caller's.
#pragma once

#include <stdint.h>

#pragma GCC visibility push(default)
extern "C" {

// Weights as bf16; as bytes for float rows; as bytes for rows of bytes.
enum SjKind { SJ_BF16 = 0, SJ_W8A16 = 1, SJ_W8A8 = 2 };

struct SjLinear {
  const void* panels;
  int32_t kind;
};

struct SjLayer {
  const float* attention_norm;  // [hidden]
  struct SjLinear qkv;          // heads*head_dim + 2*kv_heads*head_dim outputs
  const float* qkv_bias;        // or null
  const float* q_norm;          // [head_dim], or [heads*head_dim] if `whole_norms`, or null
  const float* k_norm;          // [head_dim], or [kv_heads*head_dim], or null
  struct SjLinear attention_out;
  const float* attention_out_bias;  // [hidden], or null
  const float* mlp_norm;
  struct SjLinear gate_up;  // each panel: 16 rows of gate, then the same 16 of up
  struct SjLinear down;     // with experts, gate_up and down are those of all, one behind the other
  struct SjLinear router;   // an output for each expert, and one for the shared expert's weight
  struct SjLinear shared_gate_up;
  struct SjLinear shared_down;
  int32_t window;  // positions that a row sees, its own among them
};

struct SjRange {
  int32_t begin, end;
};

// What this process computes of a model that several share: all of it if there is one.
struct SjPart {
  struct SjRange kv_heads;
  struct SjRange hidden, vocab;  // in panels of 32 outputs
  struct SjRange inner, shared;  // in panels of 16 outputs, with their gates
};

struct SjModel {
  int32_t layer_count, hidden, heads, kv_heads, head_dim, inner, vocab;
  int32_t experts, experts_used;  // 0 of a model without; their linears are bf16
  int32_t normalised;             // the weights of those chosen sum up to one
  int32_t shared_inner;           // width of the expert that every row takes; 0 without
  int32_t whole_norms;  // q_norm and k_norm take all heads as one vector
  float epsilon, score_scale;
  const double* rope_frequencies;  // [head_dim / 2], radians per position
  struct SjLinear embedding;
  struct SjLinear head;  // the embedding's when tied
  const float* final_norm;
  const struct SjLayer* layers;
  struct SjPart part;
};

// Whose columns the processes give one another. Buffers are as wide as in a single process.
enum SjColumns {
  SJ_QUERIES = 0,  // of the fused projection
  SJ_KEYS = 1,     // of the same rows
  SJ_MIXED = 2,
  SJ_RESIDUAL = 3,
  SJ_INNER = 4,
  SJ_SHARED = 5,
  SJ_LOGITS = 6,
};

struct SjBatch {
  int32_t rows, wanted_count;
  const int32_t* tokens;       // [rows]
  const int32_t* positions;    // [rows]
  const int32_t* table_start;  // [rows]: where in `blocks` the row's sequence begins
  const int32_t* blocks;       // block numbers of all sequences, one after the other
  const int32_t* wanted;       // [wanted_count]: rows whose logits are returned
  float* logits;               // [wanted_count][vocab]
  uint8_t* kv;                 // blocks of [layers][2][kv_heads of the part][64 * head_dim] bf16
  const volatile int32_t* stop;  // or null; read every four layers
  int32_t (*poll)(void);         // or null; called where `stop` is read, non-zero means stop
  // Null in a single process, else called by one thread. What all processes do about a wish to stop;
  int32_t (*agree)(int32_t asked);
  // and the columns that the others computed of `count` rows, filled in.
  void (*exchange)(int32_t columns, float* rows, int32_t count);
};

// All give equal bits.
enum SjVariant { SJ_AUTO = 0, SJ_AVX2 = 1, SJ_AVX512 = 2, SJ_AVXVNNI = 3, SJ_AVX512VNNI = 4, SJ_AMX = 5 };

struct SjEngine;

// Null if the processor lacks the variant. `pairs`: bf16 linears sum in the order of the matrix unit, other
// bits than without; fast where there is one.
struct SjEngine* sj_open(const struct SjModel* model, int32_t threads, int32_t variant, int32_t pairs);
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
