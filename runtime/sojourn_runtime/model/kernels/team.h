// A fixed team of threads that runs one function together, with a barrier.
//
// Not OpenMP: its library is missing from slim images, and its wait policy can only be set by the
// environment. A waiter here spins for some microseconds, then sleeps in the kernel: sessions share
// cores, and a spinning neighbour ruins them.
#pragma once

#include <stdint.h>

class Team {
 public:
  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  // Runs `work(context, member)` on every member, the caller being member 0; returns when all are done.
  void run(void (*work)(void* context, int member), void* context);
  // Called by every member from inside `run`.
  void barrier();

 private:
  struct State;
  void close();
  static void serve(State* state, int member);
  int size_;
  State* state_;
};

// The next unclaimed index of a piece of work that members share; reset by one member between two barriers.
class Counter {
 public:
  int next();
  void reset();

 private:
  int32_t value_ = 0;
};
