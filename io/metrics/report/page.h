#pragma once

#include <string>
#include <vector>

#include "io/records/records.h"
#include "io/runs/attempts.h"
#include "io/runs/series.h"

namespace trainerd::io {

/// The outcome of a run that goes on, and what its page has in its first kilobyte.
inline constexpr const char* kRunning = "running";
inline constexpr const char* kRunningTag = "<meta name=\"run\" content=\"running\">\n";

/// All that the report shows.
struct Report {
  RunInfo info;
  double now = 0;                     ///< Unix seconds
  double total_seconds = 0;           ///< of all attempts
  std::int64_t tokens = 0;            ///< trained on
  std::vector<NoticeRecord> notices;  ///< of all attempts
  std::vector<Attempt> attempts;
  WallLedger wall;  ///< what their time went into
  RunSummary summary;
  StepSeries series;
  std::vector<EvaluationRecord> evaluations;
  std::vector<CheckpointRecord> checkpoints;
  PredictionRecord prediction;          ///< no terms: not compared
  double final_loss = 0;                ///< meaningful when the series is not empty
  double median_tokens_per_second = 0;  ///< of all steps; 0: none
  double median_mfu = 0;                ///< 0: unknown
  std::string job_yaml;
};

/// One HTML page that fetches nothing: style and charts are in it, and there is no script.
std::string render(const Report& report);

}  // namespace trainerd::io
