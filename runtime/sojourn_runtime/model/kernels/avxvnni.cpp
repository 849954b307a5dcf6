#define SJ_VARIANT sj_avxvnni
#include "step.h"

void sj_step_avxvnni(void* step, int member) { sj_avxvnni::run_step(*static_cast<const Step*>(step), member); }
