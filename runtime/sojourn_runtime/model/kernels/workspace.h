// What the members of a team share during one step.
#pragma once

#include "sojourn_kernels.h"
#include "team.h"

struct Workspace {
  float* residual;   // [rows][hidden]
  float* normed;     // [rows][hidden], bf16 values
  float* qkv;        // [rows][outputs of the fused projection, in whole panels]
  float* mixed;      // [rows][heads * head_dim], bf16 values
  float* inner;      // [rows][inner], bf16 values
  Counter claimed;   // attention: row and key head
  int32_t stopping;  // set by member 0 before a barrier
};

struct Step {
  const SjModel* model;
  const SjBatch* batch;
  Workspace* space;
  Team* team;
};
