// Chooses the variant for the processor, and owns the team and the workspace of one model.
#include <algorithm>
#include <new>
#include <system_error>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

#include "workspace.h"

void sj_step_avx2(void* step, int member);
void sj_step_avx512(void* step, int member);
void sj_step_avxvnni(void* step, int member);
void sj_step_avx512vnni(void* step, int member);
void sj_step_amx(void* step, int member);

namespace {

constexpr int kPanel = 32, kTileRows = 16, kLine = 64;

struct Variant {
  int32_t number;
  void (*step)(void* step, int member);
};

// Best first. All give equal bits.
constexpr Variant kVariants[] = {
    {SJ_AMX, sj_step_amx},
    {SJ_AVX512VNNI, sj_step_avx512vnni},
    {SJ_AVX512, sj_step_avx512},
    {SJ_AVXVNNI, sj_step_avxvnni},
    {SJ_AVX2, sj_step_avx2},
};

// Linux gives a process the tiles' registers on request only, for the signal stack grows by them.
bool tiles_granted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool offers(int32_t variant) {
  __builtin_cpu_init();
  const bool amx = variant == SJ_AMX;
  const bool wide = amx || variant == SJ_AVX512 || variant == SJ_AVX512VNNI;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
  if (wide && !(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")))
    return false;
  if (amx)
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("amx-tile") &&
           __builtin_cpu_supports("amx-int8") && __builtin_cpu_supports("amx-bf16") && tiles_granted();
  if (variant == SJ_AVX512VNNI) return __builtin_cpu_supports("avx512vnni");
  return variant != SJ_AVXVNNI || __builtin_cpu_supports("avxvnni");
}

const Variant* choose(int32_t wanted) {
  for (const Variant& variant : kVariants)
    if ((wanted == SJ_AUTO || wanted == variant.number) && offers(variant.number)) return &variant;
  return nullptr;
}

// The next border of a cache line, since tiles are read line by line.
template <class T>
T* on_line(T* p) {
  return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(p) + kLine - 1) / kLine * kLine);
}

}  // namespace

struct SjEngine {
  SjEngine(const SjModel& model, int threads, const Variant& chosen, bool pairs)
      : model(model), variant(chosen), team(threads) {
    space.pairs = pairs;
  }

  static size_t whole(size_t size, size_t step) { return (size + step - 1) / step * step; }

  void reserve(size_t rows) {
    rows = std::max(rows, size_t(team.size()));
    const size_t heads = size_t(model.heads) * model.head_dim;
    const size_t fused = heads + 2 * size_t(model.kv_heads) * model.head_dim;
    residual.resize(rows * model.hidden);
    angles.resize(rows * model.head_dim);
    normed.resize(rows * model.hidden);
    qkv.resize(rows * ((fused + kPanel - 1) / kPanel * kPanel));
    mixed.resize(rows * heads);
    inner.resize(rows * std::max(1, model.experts_used) * model.inner);
    const size_t widest = whole(std::max({size_t(model.hidden), heads, size_t(model.inner)}), 32);
    bytes.resize((rows + kTileRows) * widest + kLine);  // tiles read sixteen rows at a time
    paired.resize(space.pairs ? team.size() * widest * kPanel + kLine : 0);
    scales.resize(rows);
    offsets.resize(rows);
    space.residual = residual.data();
    space.angles = angles.data();
    space.normed = normed.data();
    space.qkv = qkv.data();
    space.mixed = mixed.data();
    space.inner = inner.data();
    space.bytes = on_line(bytes.data());
    space.paired = on_line(paired.data());
    space.paired_size = long(widest * kPanel);
    space.scales = scales.data();
    space.offsets = offsets.data();
    if (model.experts) reserve_routing(rows);
  }

  void reserve_routing(size_t rows) {
    const size_t slots = rows * model.experts_used;
    const size_t hidden = (size_t(model.hidden) + kPanel - 1) / kPanel * kPanel;
    scores.resize(rows * ((size_t(model.experts) + 1 + kPanel - 1) / kPanel * kPanel));
    chosen.resize(slots);
    weight.resize(slots);
    slot.resize(slots);
    row.resize(slots);
    first.resize(model.experts + 1);
    gathered.resize(slots * model.hidden);
    made.resize(slots * hidden);
    shared_weight.resize(rows);
    shared.resize(rows * model.shared_inner);
    shared_made.resize(model.shared_inner ? rows * hidden : 0);
    space.routing = {scores.data(),   chosen.data(), weight.data(),        slot.data(),   row.data(),        first.data(),
                     gathered.data(), made.data(),   shared_weight.data(), shared.data(), shared_made.data()};
  }

  SjModel model;
  Variant variant;
  Team team;
  Workspace space{};
  std::vector<float> residual, angles, normed, qkv, mixed, inner, scales;
  std::vector<int16_t> bytes;
  std::vector<uint16_t> paired;
  std::vector<int32_t> offsets;
  std::vector<float> scores, weight, gathered, made, shared_weight, shared, shared_made;
  std::vector<int32_t> chosen, slot, row, first;
};

SjEngine* sj_open(const SjModel* model, int32_t threads, int32_t variant, int32_t pairs) {
  const Variant* chosen = choose(variant);
  if (!chosen) return nullptr;
  try {
    return new SjEngine(*model, threads, *chosen, pairs);
  } catch (const std::bad_alloc&) {
    return nullptr;
  } catch (const std::system_error&) {
    return nullptr;
  }
}

int32_t sj_variant(const SjEngine* engine) { return engine->variant.number; }

int32_t sj_forward(SjEngine* engine, const SjBatch* batch) {
  try {
    engine->reserve(batch->rows);
  } catch (const std::bad_alloc&) {
    return 2;
  }
  Step step{&engine->model, batch, &engine->space, &engine->team};
  engine->space.stopping = 0;
  engine->team.run(engine->variant.step, &step);
  return engine->space.stopping ? 1 : 0;
}

void sj_close(SjEngine* engine) { delete engine; }
