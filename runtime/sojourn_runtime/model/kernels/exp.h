// Our own exp, sine and cosine: libm's results differ between versions and processors, these cannot.
#pragma once

#include "lanes.h"

namespace SJ_VARIANT {

// e^x to about one unit in the last place, for x <= 88; 0 is never returned, 2^-126 stands for all below.
// Cody-Waite reduction to |r| <= ln(2)/2, then the Taylor polynomial of degree 7 (its rest is below 2^-27).
inline Lanes exp(Lanes x) {
  // 1.5 * 2^23: adding it rounds to an integer, which then sits in the low bits.
  const Lanes shift = all(12582912.0f);
  x = max(min(x, all(88.0f)), all(-87.0f));
  const Lanes shifted = fma(x, all(1.44269504f), shift);
  const Lanes n = sub(shifted, shift);
  Lanes r = fma(n, all(-0.693359375f), x);
  r = fma(n, all(2.12194440e-4f), r);
  Lanes y = all(1.0f / 5040);
  y = fma(y, r, all(1.0f / 720));
  y = fma(y, r, all(1.0f / 120));
  y = fma(y, r, all(1.0f / 24));
  y = fma(y, r, all(1.0f / 6));
  y = fma(y, r, all(0.5f));
  y = fma(y, r, all(1.0f));
  y = fma(y, r, all(1.0f));
  return scale_by_power(y, shifted);
}

// In double, so that rounding to float forgets the polynomial's error. Angles stay below 2^31.
inline void sincos(double angle, float& sine, float& cosine) {
  const double quarter = angle * 0.63661977236758134308;
  // 1.5 * 2^52: to the nearest integer.
  const double turns = (quarter + 6755399441055744.0) - 6755399441055744.0;
  double r = __builtin_fma(turns, -1.57079632679489655800, angle);
  r = __builtin_fma(turns, -6.12323399573676603587e-17, r);
  const double z = r * r;
  double s = -1.0 / 1307674368000.0;
  s = __builtin_fma(s, z, 1.0 / 6227020800.0);
  s = __builtin_fma(s, z, -1.0 / 39916800.0);
  s = __builtin_fma(s, z, 1.0 / 362880.0);
  s = __builtin_fma(s, z, -1.0 / 5040.0);
  s = __builtin_fma(s, z, 1.0 / 120.0);
  s = __builtin_fma(s, z, -1.0 / 6.0);
  s = __builtin_fma(s * z, r, r);
  double c = 1.0 / 20922789888000.0;
  c = __builtin_fma(c, z, -1.0 / 87178291200.0);
  c = __builtin_fma(c, z, 1.0 / 479001600.0);
  c = __builtin_fma(c, z, -1.0 / 3628800.0);
  c = __builtin_fma(c, z, 1.0 / 40320.0);
  c = __builtin_fma(c, z, -1.0 / 720.0);
  c = __builtin_fma(c, z, 1.0 / 24.0);
  c = __builtin_fma(c, z, -0.5);
  c = __builtin_fma(c, z, 1.0);
  switch (static_cast<long long>(turns) & 3) {
    case 0: sine = float(s); cosine = float(c); break;
    case 1: sine = float(c); cosine = float(-s); break;
    case 2: sine = float(-s); cosine = float(-c); break;
    default: sine = float(-c); cosine = float(s); break;
  }
}

}  // namespace SJ_VARIANT
