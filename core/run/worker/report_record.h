#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/job/job.h"
#include "core/train/trainer.h"
#include "io/records/records.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::run {

/// Copies a step's report into its record.
void put_report(const train::StepReport& report, const train::Trainer& trainer, const job::JobSpec& job,
                io::StepRecord& record);

/// For a step that updated nothing: throws DataError or DivergedError on the rank that knows the cause. Other
/// ranks call `await_agent` in a loop until the agent ends them.
void require_updated(const train::StepReport& report, std::int64_t step, std::int64_t rank,
                     const job::JobSpec& job, const std::function<void()>& await_agent);
/// Copies a rank's backend counters into the record; missed choices of timed GEMMs are reduced by
/// `missed_before`, the count before the first step. Throws SpecError if the job's `attention.require` is
/// violated.
void put_counters(const kernels::BackendCounters& counters, const job::JobSpec& job, io::StepRecord& record,
                  std::int64_t missed_before = 0);

/// A warning that attention planned for `library` ran on our own kernels; empty if none did.
std::string attention_warning(const io::StepRecord& record, const std::string& library);

/// A notice on the rank's use of CUDA graphs: how many, or why none, once that is decided. Rank 0 always
/// reports it, other ranks only if their device refused a graph.
std::optional<io::NoticeRecord> graphs_notice(const kernels::GraphUse& use, std::int64_t rank,
                                              std::int64_t step);

/// A notice that the measured GEMM peak was too low.
io::NoticeRecord raised_peak_notice(std::int64_t step, double before, double now);

}  // namespace trainerd::core::run
