#include "core/run/worker/probe.h"

#include <string>

#include "core/rank/canary.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

// Large enough that a GPU computes for longer than the launch takes.
constexpr std::int64_t kGpuSize = 4096;

}  // namespace

double probe_device(const job::JobSpec& job, std::int64_t rank, kernels::Backend& backend,
                    const rank::PeakRate& peak) {
  try {
    if (const std::string wrong = rank::wrong_products(backend, job.precision.compute); !wrong.empty())
      throw base::device_error("rank " + std::to_string(rank) + " computes wrongly before its first step: " +
                               wrong + "; take its device out of use, or its host where it has none");
    return peak.measured() ? peak.flops_per_second()
                           : rank::gemm_rate(backend, job.precision.compute, kGpuSize);
  } catch (const base::CapacityError&) {
    return 0;
  }
}

}  // namespace trainerd::core::run
