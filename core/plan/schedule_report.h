#pragma once

#include <string>

#include "core/plan/plan.h"
#include "core/spec/spec.h"
#include "parallel/schedule/schedule.h"
#include "parallel/schedule/timeline.h"

namespace trainerd::core {

/// The job's training pass over the pipeline, and its description: "1f1b, 4 stages of 1 chunks, 8
/// microbatches".
parallel::ScheduleShape schedule_shape(const JobSpec& job);
std::string schedule_title(const parallel::ScheduleShape& shape);

/// One line for people: how long the pipeline takes and how much of that is bubble.
std::string schedule_text(const parallel::ScheduleShape& shape, const parallel::Timeline& timeline);
/// One JSON object on one line: `stages`, `virtual_stages`, `microbatches`, `pipeline_seconds`, `bubble`.
std::string schedule_json(const std::string& job, const parallel::ScheduleShape& shape,
                          const parallel::Timeline& timeline);

/// A step without rates: what fits, and the schedule where each computation takes one unit of time.
std::string untimed_text(const Plan& plan, const parallel::ScheduleShape& shape, const parallel::Timeline& timeline);
std::string untimed_json(const Plan& plan, const parallel::ScheduleShape& shape, const parallel::Timeline& timeline);

}  // namespace trainerd::core
