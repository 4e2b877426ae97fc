#pragma once

#include <string>
#include <vector>

#include "io/metrics/report/series.h"
#include "io/records.h"

namespace trainerd::io {

/// All that the report shows.
struct Report {
  RunInfo info;
  RunSummary summary;
  StepSeries series;
  std::vector<EvaluationRecord> evaluations;
  std::vector<CheckpointRecord> checkpoints;
  PredictionRecord prediction;          ///< no terms: not compared
  double final_loss = 0;                ///< meaningful when the series is not empty
  double median_tokens_per_second = 0;  ///< of the latest process's steps; 0: none
  double median_mfu = 0;                ///< 0: unknown
  std::string job_yaml;
};

/// One HTML page that fetches nothing: style and charts are in it, and there is no script.
std::string render(const Report& report);

}  // namespace trainerd::io
