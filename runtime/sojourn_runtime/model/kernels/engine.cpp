// Chooses the variant for the processor, and owns the team and the workspace of one model.
#include <new>
#include <system_error>
#include <vector>

#include "workspace.h"

void sj_step_avx2(void* step, int member);
void sj_step_avx512(void* step, int member);

namespace {

constexpr int kPanel = 32;

bool offers(int32_t variant) {
  __builtin_cpu_init();
  if (variant == SJ_AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

int32_t choose(int32_t wanted) {
  if (wanted != SJ_AUTO) return offers(wanted) ? wanted : SJ_AUTO;
  return offers(SJ_AVX512) ? SJ_AVX512 : offers(SJ_AVX2) ? SJ_AVX2 : SJ_AUTO;
}

}  // namespace

struct SjEngine {
  SjEngine(const SjModel& model, int threads, int32_t chosen)
      : model(model), variant(chosen), team(threads) {}

  void reserve(size_t rows) {
    const size_t heads = size_t(model.heads) * model.head_dim;
    const size_t fused = heads + 2 * size_t(model.kv_heads) * model.head_dim;
    residual.resize(rows * model.hidden);
    normed.resize(rows * model.hidden);
    qkv.resize(rows * ((fused + kPanel - 1) / kPanel * kPanel));
    mixed.resize(rows * heads);
    inner.resize(rows * model.inner);
    space.residual = residual.data();
    space.normed = normed.data();
    space.qkv = qkv.data();
    space.mixed = mixed.data();
    space.inner = inner.data();
  }

  SjModel model;
  int32_t variant;
  Team team;
  Workspace space{};
  std::vector<float> residual, normed, qkv, mixed, inner;
};

SjEngine* sj_open(const SjModel* model, int32_t threads, int32_t variant) {
  const int32_t chosen = choose(variant);
  if (chosen == SJ_AUTO) return nullptr;
  try {
    return new SjEngine(*model, threads, chosen);
  } catch (const std::bad_alloc&) {
    return nullptr;
  } catch (const std::system_error&) {
    return nullptr;
  }
}

int32_t sj_variant(const SjEngine* engine) { return engine->variant; }

int32_t sj_forward(SjEngine* engine, const SjBatch* batch) {
  try {
    engine->reserve(batch->rows);
  } catch (const std::bad_alloc&) {
    return 2;
  }
  Step step{&engine->model, batch, &engine->space, &engine->team};
  engine->space.stopping = 0;
  engine->team.run(engine->variant == SJ_AVX512 ? sj_step_avx512 : sj_step_avx2, &step);
  return engine->space.stopping ? 1 : 0;
}

void sj_close(SjEngine* engine) { delete engine; }
