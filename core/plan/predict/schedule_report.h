#pragma once

#include <string>

#include "core/job/job.h"
#include "core/plan/predict/plan.h"
#include "parallel/schedule/schedule.h"
#include "parallel/schedule/timeline.h"

namespace trainerd::core::plan {

/// "1f1b, 4 stages of 1 chunks, 8 microbatches"
std::string schedule_title(const parallel::ScheduleShape& shape);

/// One human-readable line: the pipeline's duration and its bubble.
std::string schedule_text(const parallel::ScheduleShape& shape, const parallel::Timeline& timeline);
/// One JSON object on one line: `stages`, `virtual_stages`, `microbatches`, `pipeline_seconds`, `bubble`.
std::string schedule_json(const std::string& job, const parallel::ScheduleShape& shape,
                          const parallel::Timeline& timeline);

/// Reports for a topology without rates: whether the job fits, and the schedule with one unit of time per
/// computation.
std::string untimed_text(const Plan& plan, const parallel::ScheduleShape& shape,
                         const parallel::Timeline& timeline);
std::string untimed_json(const Plan& plan, const parallel::ScheduleShape& shape,
                         const parallel::Timeline& timeline);

}  // namespace trainerd::core::plan
