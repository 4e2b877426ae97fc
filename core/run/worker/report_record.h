#pragma once

#include "core/job/job.h"
#include "core/train/trainer.h"
#include "io/records/records.h"

namespace trainerd::core::run {

/// Puts what a step of `trainer` gave back into its record.
void put_report(const train::StepReport& report, const train::Trainer& trainer, const job::JobSpec& job,
                io::StepRecord& record);

}  // namespace trainerd::core::run
