#pragma once

#include <cstdint>

#include "core/job/job.h"
#include "core/rank/gemm_peak.h"

namespace trainerd::core::run {

/// Looks at a rank's device after its state was loaded. FLOP/s of its GEMMs; 0: a job that takes all of the
/// device's memory leaves no room to look. Throws DeviceError where it computes products wrongly whose values
/// are known.
double probe_device(const job::JobSpec& job, std::int64_t rank, kernels::Backend& backend,
                    const rank::PeakRate& peak);

}  // namespace trainerd::core::run
