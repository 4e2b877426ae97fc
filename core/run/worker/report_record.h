#pragma once

#include "core/job/job.h"
#include "core/train/trainer.h"
#include "io/records/records.h"

namespace trainerd::core::run {

/// Puts what a step of `trainer` gave back into its record.
void put_report(const train::StepReport& report, const train::Trainer& trainer, const job::JobSpec& job,
                io::StepRecord& record);

/// That the measured peak of GEMMs was too low.
io::NoticeRecord raised_peak_notice(std::int64_t step, double before, double now);

}  // namespace trainerd::core::run
