#include "core/run/worker/probe.h"

#include "core/rank/canary.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {

double probe_device(const job::JobSpec& job, std::int64_t rank, kernels::Backend& backend,
                    const rank::PeakRate& peak) {
  if (const std::string wrong = rank::wrong_products(backend, job.precision.compute); !wrong.empty())
    throw base::device_error("rank " + std::to_string(rank) + " computes wrongly before its first step: " +
                             wrong + "; take its device out of use, or its host where it has none");
  return peak.measured() ? peak.flops_per_second() : rank::measure_gemm_peak(backend, job.precision.compute);
}

}  // namespace trainerd::core::run
