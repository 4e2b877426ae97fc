#pragma once

#include <string>

#include "parallel/layout/topology.h"

namespace trainerd::parallel {

/// The maker's dense rates of a GPU, by the name that its driver gives it ("NVIDIA H200"); zeros, and so no
/// MFU, for one that is not in the table.
PeakRates published_peaks(const std::string& device_name);

}  // namespace trainerd::parallel
