/* runtime.h: between fibers.cpp and runtime.cpp: the device's sticky error. */
#ifndef TD_EMULATOR_RUNTIME_H
#define TD_EMULATOR_RUNTIME_H

#include "emulator.h"

namespace emu
{
int sticky_error(); /* 1: the context is lost; nothing runs any more */
void set_error(cudaError_t e);
} // namespace emu

#endif
