#define SJ_VARIANT sj_amx
#include "step.h"

void sj_step_amx(void* step, int member) { sj_amx::run_step(*static_cast<const Step*>(step), member); }
