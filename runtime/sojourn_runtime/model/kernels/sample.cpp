// Chooses a token: a function of (logits, parameters, key) alone, on any processor.
//
// Gumbel-max: the winner of x_i - log(E_i), where E_i is exponential noise from a counter-based hash of
// (key, token). No state, so nothing of it must survive a pause. Plain double arithmetic; our own exp
// and log, because libm's differ.
#include <algorithm>
#include <cstring>
#include <vector>

#include "sojourn_kernels.h"

namespace {

constexpr double kLn2 = 0.69314718055994530942;
// E lies between 2^-33 and 23, so x + noise spans 26: a token this far below the best cannot win.
constexpr float kHopeless = -26.1f;

double power_of_two(long n) {
  const uint64_t bits = uint64_t(n + 1023) << 52;
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// For -700 < x <= 0; the rest of the series is below 2^-50.
double exp_of(double x) {
  const double n = (x / kLn2 + 6755399441055744.0) - 6755399441055744.0;
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  double y = 1.0;
#pragma GCC unroll 16
  for (int i = 13; i >= 1; --i) y = 1.0 + y * r * (1.0 / i);
  return y * power_of_two(long(n));
}

// For x > 0: 2 artanh((m - 1) / (m + 1)) + e ln 2, with m within a factor sqrt(2) of 1.
double log_of(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  long exponent = long(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL;
  double m;
  std::memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    exponent += 1;
  }
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double sum = 0.0;
#pragma GCC unroll 16
  for (int i = 19; i >= 1; i -= 2) sum = sum * z + 1.0 / i;
  return double(exponent) * kLn2 + 2.0 * s * sum;
}

// The finaliser of splitmix64.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

uint64_t key_of(const SjSampling& s) {
  uint64_t key = mix(s.seed + kGolden);
  key = mix(key ^ (uint64_t(uint32_t(s.choice)) * kGolden));
  return mix(key ^ (uint64_t(uint32_t(s.position)) + kGolden));
}

struct Candidate {
  float x;
  int32_t id;
};

bool likelier(const Candidate& a, const Candidate& b) { return a.x > b.x || (a.x == b.x && a.id < b.id); }

void keep_top(std::vector<Candidate>& all, size_t count) {
  if (all.size() <= count) return;
  std::nth_element(all.begin(), all.begin() + count, all.end(), likelier);
  all.resize(count);
  std::sort(all.begin(), all.end(), likelier);  // what follows sums in this order, which must be one
}

// The likeliest tokens whose probabilities reach `share` of all, at least one.
void keep_share(std::vector<Candidate>& all, double share) {
  double whole = 0.0;
  for (const Candidate& c : all) whole += exp_of(c.x);
  double sum = 0.0;
  size_t sorted = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == sorted) {  // most distributions need few tokens: sort no more than asked for
      sorted = std::min(all.size(), std::max<size_t>(64, sorted * 8));
      std::partial_sort(all.begin() + i, all.begin() + sorted, all.end(), likelier);
    }
    sum += exp_of(all[i].x);
    if (sum >= share * whole) {
      all.resize(i + 1);
      return;
    }
  }
}

int32_t race(const std::vector<Candidate>& all, uint64_t key) {
  double best = -1e300;
  int32_t winner = all.front().id;
  for (const Candidate& c : all) {
    const uint32_t h = uint32_t(mix(key + uint64_t(uint32_t(c.id)) * kGolden) >> 32);
    // Noise is at most -log(u), and u is at least 2^-(leading zeros + 1): most tokens are out without a
    // logarithm.
    if (c.x + (h ? __builtin_clz(h) + 1 : 33) * kLn2 < best) continue;
    const double u = (double(h) + 0.5) * 0x1p-32;
    const double score = c.x - log_of(-log_of(1.0 - u));
    if (score > best || (score == best && c.id < winner)) {
      best = score;
      winner = c.id;
    }
  }
  return winner;
}

}  // namespace

int32_t sj_sample(const float* logits, int32_t vocab, const SjSampling* s) {
  int32_t top = 0;
  for (int32_t i = 1; i < vocab; ++i)
    if (logits[i] > logits[top]) top = i;
  if (s->temperature <= 0.0f) return top;
  float lowest = kHopeless;
  if (s->min_p > 0.0f) lowest = std::max(lowest, float(log_of(std::min(1.0, double(s->min_p)))));
  std::vector<Candidate> all;
  all.reserve(1024);
  for (int32_t i = 0; i < vocab; ++i) {
    const float x = (logits[i] - logits[top]) / s->temperature;
    if (x >= lowest) all.push_back({x, i});
  }
  if (s->top_k > 0) keep_top(all, size_t(s->top_k));
  if (s->top_p < 1.0f) keep_share(all, s->top_p);
  return race(all, key_of(*s));
}
