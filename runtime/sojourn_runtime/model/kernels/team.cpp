#include "team.h"

#include <atomic>
#include <immintrin.h>
#include <thread>
#include <vector>

namespace {

constexpr int kSpins = 200;  // about 10 microseconds: the phases of one layer are tens to hundreds

void wait_while(const std::atomic<uint32_t>& word, uint32_t value) {
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) != value) return;
    _mm_pause();
  }
  while (word.load(std::memory_order_acquire) == value) word.wait(value, std::memory_order_acquire);
}

}  // namespace

struct Team::State {
  Team* team = nullptr;
  std::atomic<uint32_t> job{0}, arrived{0}, phase{0};
  bool closing = false;
  void (*work)(void*, int) = nullptr;
  void* context = nullptr;
  std::vector<std::thread> threads;
};

Team::Team(int size) : size_(size), state_(new State) {
  state_->team = this;
  try {
    for (int member = 1; member < size; ++member) state_->threads.emplace_back(serve, state_, member);
  } catch (...) {  // a limit of processes: those that run must end before the error may go on
    close();
    throw;
  }
}

Team::~Team() { close(); }

void Team::close() {
  state_->closing = true;
  state_->job.fetch_add(1, std::memory_order_release);
  state_->job.notify_all();
  for (auto& thread : state_->threads) thread.join();
  delete state_;
}

void Team::serve(State* state, int member) {
  for (uint32_t seen = 0;; ++seen) {
    wait_while(state->job, seen);
    if (state->closing) return;
    state->work(state->context, member);
    state->team->barrier();
  }
}

void Team::run(void (*work)(void*, int), void* context) {
  if (size_ > 1) {
    state_->work = work;
    state_->context = context;
    state_->job.fetch_add(1, std::memory_order_release);
    state_->job.notify_all();
  }
  work(context, 0);
  barrier();
}

void Team::barrier() {
  if (size_ == 1) return;
  const uint32_t phase = state_->phase.load(std::memory_order_acquire);
  if (state_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(size_)) {
    state_->arrived.store(0, std::memory_order_relaxed);
    state_->phase.store(phase + 1, std::memory_order_release);
    state_->phase.notify_all();
    return;
  }
  wait_while(state_->phase, phase);
}

int Counter::next() { return std::atomic_ref<int32_t>(value_).fetch_add(1, std::memory_order_relaxed); }
void Counter::reset() { std::atomic_ref<int32_t>(value_).store(0, std::memory_order_relaxed); }
