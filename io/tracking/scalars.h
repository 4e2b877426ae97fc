#pragma once

#include <string>
#include <utility>
#include <vector>

#include "io/records/records.h"

namespace trainerd::io {

/// Values of a record for trackers: "loss", "learning_rate", "time/compute", ...; names as in steps.jsonl.
std::vector<std::pair<std::string, double>> scalars_of(const StepRecord& record);
std::vector<std::pair<std::string, double>> scalars_of(const EvaluationRecord& record);

}  // namespace trainerd::io
