#define SJ_VARIANT sj_avx2
#include "step.h"

void sj_step_avx2(void* step, int member) { sj_avx2::run_step(*static_cast<const Step*>(step), member); }
