// What the members of a team share during one step. There is room for as many rows as members.
#pragma once

#include "sojourn_kernels.h"
#include "team.h"

// Which experts the rows chose. A slot is one row at one of its experts; there are `rows * experts_used`.
struct Routing {
  float* scores;         // [rows][outputs of the router, in whole panels]
  int32_t* chosen;       // [rows][experts_used], the likeliest first
  float* weight;         // [rows][experts_used]
  int32_t* slot;         // [rows][experts_used]
  int32_t* row;          // [slots]
  int32_t* first;        // [experts + 1]: an expert's first slot
  float* gathered;       // [slots][hidden], bf16 values
  float* made;           // [slots][hidden, in whole panels]
  float* shared_weight;  // [rows]
  float* shared;         // [rows][shared_inner], bf16 values
  float* shared_made;    // [rows][hidden, in whole panels]
};

struct Workspace {
  float* residual;   // [rows][hidden]
  float* angles;     // [rows][head_dim]: cosines, then sines
  float* normed;     // [rows][hidden], bf16 values
  float* qkv;        // [rows][outputs of the fused projection, in whole panels]
  float* mixed;      // [rows][heads * head_dim], bf16 values
  float* inner;      // [rows, or slots][inner], bf16 values
  int16_t* bytes;     // [rows][the widest input]: what a W8A8 linear or the tiles read, two bytes each at most
  float* scales;      // [rows], of the bytes
  int32_t* offsets;   // [rows], of the bytes
  uint16_t* paired;   // [members][paired_size]: scratch of the tiles, a panel
  long paired_size;
  bool pairs;         // bf16 linears sum as the matrix unit does
  Routing routing;
  Counter claimed;   // attention: row and key head
  int32_t stopping;  // set by member 0 before a barrier
};

struct Step {
  const SjModel* model;
  const SjBatch* batch;
  Workspace* space;
  Team* team;
};
