#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/job/job.h"
#include "core/train/trainer.h"
#include "io/records/records.h"
#include "kernels/backend/backend.h"

namespace trainerd::core::run {

/// Puts what a step of `trainer` gave back into its record.
void put_report(const train::StepReport& report, const train::Trainer& trainer, const job::JobSpec& job,
                io::StepRecord& record);

/// Throws DataError or DivergedError for a step that updated nothing, on the rank that knows the cause. On
/// others it calls `await_agent`, which ends this rank, until it does.
void require_updated(const train::StepReport& report, std::int64_t step, std::int64_t rank,
                     std::int64_t vocab, const std::function<void()>& await_agent);
/// What a rank's backend counted so far, of timed choices that were missed less `missed_before` its first
/// step. Throws SpecError where the job's `attention.require` is not met.
void put_counters(const kernels::BackendCounters& counters, const job::JobSpec& job, io::StepRecord& record,
                  std::int64_t missed_before = 0);

/// That attention which was planned for `library` ran by our own kernels; empty where none did.
std::string attention_warning(const io::StepRecord& record, const std::string& library);

/// Whether a rank uses CUDA graphs, how many and why not, once it has decided. Rank 0 reports it always,
/// other ranks only where their device refused a graph.
std::optional<io::NoticeRecord> graphs_notice(const kernels::GraphUse& use, std::int64_t rank,
                                              std::int64_t step);

/// That the measured peak of GEMMs was too low.
io::NoticeRecord raised_peak_notice(std::int64_t step, double before, double now);

}  // namespace trainerd::core::run
