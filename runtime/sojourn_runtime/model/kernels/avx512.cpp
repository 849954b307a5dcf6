#define SJ_VARIANT sj_avx512
#include "step.h"

void sj_step_avx512(void* step, int member) { sj_avx512::run_step(*static_cast<const Step*>(step), member); }
