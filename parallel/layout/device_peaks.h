#pragma once

#include <string>

#include "parallel/layout/topology.h"

namespace trainerd::parallel {

/// Vendor's dense rates of a GPU, by the name its driver reports ("NVIDIA H200"). Zeros, and so no MFU, for a
/// GPU that is not in the table.
PeakRates published_peaks(const std::string& device_name);

}  // namespace trainerd::parallel
