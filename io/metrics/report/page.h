#pragma once

#include <string>
#include <vector>

#include "io/records/records.h"
#include "io/runs/attempts.h"
#include "io/runs/series.h"

namespace trainerd::io {

/// Outcome of a running run, and the tag that its page has within the first kilobyte.
inline constexpr const char* kRunning = "running";
inline constexpr const char* kRunningTag = "<meta name=\"run\" content=\"running\">\n";

/// All data of the report.
struct Report {
  RunInfo info;
  double now = 0;                     ///< Unix seconds
  double total_seconds = 0;           ///< total of all attempts
  std::int64_t tokens = 0;            ///< tokens trained
  std::vector<NoticeRecord> notices;  ///< from all attempts
  std::vector<Attempt> attempts;
  WallLedger wall;  ///< split of all attempts' wall time
  RunSummary summary;
  StepSeries series;
  std::vector<EvaluationRecord> evaluations;
  std::vector<CheckpointRecord> checkpoints;
  PredictionRecord prediction;          ///< no terms: not compared
  double final_loss = 0;                ///< valid only if the series is not empty
  double median_tokens_per_second = 0;  ///< over all steps; 0: none
  double median_mfu = 0;                ///< 0: unknown
  std::string job_yaml;
};

/// Renders one self-contained HTML page with style and charts, without scripts.
std::string render(const Report& report);

}  // namespace trainerd::io
