#pragma once

#include <cstdint>
#include <vector>

#include "core/job/job.h"
#include "core/rank/device_rank.h"
#include "core/rank/gemm_peak.h"
#include "core/run/wire/messages.h"
#include "core/train/rank_page.h"

namespace trainerd::core::run {

/// Checks a rank's device after its state was loaded. Returns the FLOP/s of GEMMs; 0 if the job leaves no
/// memory for the check. Throws DeviceError if the device computes known products wrongly.
double probe_device(const job::JobSpec& job, std::int64_t rank, kernels::Backend& backend,
                    const rank::PeakRate& peak);

/// Computes a step without an update on a few pseudo-random tokens, the same on all replicas, and returns
/// this rank's loss and gradient hashes. Returns an empty result if the job has no such step
/// (job::has_canary). All ranks call it together.
CanaryResult probe_step(const job::JobSpec& job, rank::DeviceRank& rank);

/// The links of a rank on a CPU to those of other nodes, at the first start of the workers; all ranks call it
/// together. Throws CommError.
std::vector<LinkTime> probe_nodes(const Start& start, rank::DeviceRank& rank);

/// All of the above, in the members of `Ready` for them; nothing of a job without supervise.preflight.
Ready look_at_rank(const job::JobSpec& job, const Start& start, rank::DeviceRank& rank, train::RankPage& page,
                   const rank::PeakRate& peak);

}  // namespace trainerd::core::run
