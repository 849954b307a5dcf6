#define SJ_VARIANT sj_avx512vnni
#include "step.h"

void sj_step_avx512vnni(void* step, int member) { sj_avx512vnni::run_step(*static_cast<const Step*>(step), member); }
