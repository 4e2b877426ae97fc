#pragma once

#include <cstdint>

#include "core/job/job.h"
#include "core/rank/gemm_peak.h"

namespace trainerd::core::run {

/// Checks a rank's device after its state was loaded. Returns the FLOP/s of GEMMs; 0 if the job leaves no
/// memory for the check. Throws DeviceError if the device computes known products wrongly.
double probe_device(const job::JobSpec& job, std::int64_t rank, kernels::Backend& backend,
                    const rank::PeakRate& peak);

}  // namespace trainerd::core::run
