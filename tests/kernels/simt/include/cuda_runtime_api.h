#pragma once

// Stands in for CUDA's header of the same name when kernels are compiled for the host
// (tests/kernels/simt/simt.h).

#include "tests/kernels/simt/simt.h"
