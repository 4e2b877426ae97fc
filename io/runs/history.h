#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "io/records/ranks.h"
#include "io/records/records.h"
#include "io/runs/attempts.h"
#include "io/runs/series.h"
#include "io/runs/status.h"

namespace trainerd::io {

/// A run as seen through its records, live or read from its logs. Its memory does not grow with the run.
class RunHistory {
 public:
  void set_info(const RunInfo& info);
  void set_prediction(const PredictionRecord& record) { prediction_ = record; }
  void add(const StepRecord& record);
  void add(const EvaluationRecord& record);
  void add(const EvaluationProgress& record) { progress_ = record; }
  void add(const CheckpointRecord& record);
  void add(const NoticeRecord& record);
  void add(const RankStateRecord& record);
  void add(const RankMemoryRecord& record);
  /// `now`: Unix seconds.
  void add(const RankDoingRecord& record, double now);
  /// Steps after the record's are done again.
  void restart(const RestartRecord& record);
  void finish(const RunSummary& summary);

  const RunInfo& info() const { return info_; }
  const StepSeries& series() const { return series_; }
  const PredictionRecord& prediction() const { return prediction_; }
  const std::vector<EvaluationRecord>& evaluations() const { return evaluations_; }
  const std::deque<CheckpointRecord>& checkpoints() const { return checkpoints_; }
  /// The latest few thousand.
  const std::deque<NoticeRecord>& notices() const { return notices_; }
  std::vector<Attempt> attempts() const { return attempts_of({turns_.begin(), turns_.end()}); }
  const std::optional<StepRecord>& last() const { return last_; }
  bool empty() const { return !last_ && turns_.empty(); }

  /// `now`: Unix seconds. A run without a recorded end counts as running.
  RunStatus status(double now) const;

 private:
  struct RecentStep {
    double wall_time = 0, step_seconds = 0;
    base::TimeLedger time;
  };
  RunState state() const;
  void add_event(double wall_time, std::int64_t step, const char* kind, std::string message);
  void add_pace(RunStatus& status) const;
  void add_memory(RunStatus& status) const;

  RunInfo info_;
  StepSeries series_;
  PredictionRecord prediction_;
  std::optional<StepRecord> last_;
  std::int64_t drawn_step_ = 0;  ///< last step in `series_`
  std::int64_t step_ = 0, tokens_ = 0;
  std::deque<RecentStep> recent_;  ///< steps of this attempt
  double begun_at_ = 0;            ///< wall time
  std::array<double, base::kLedgerParts.size()> total_time_{};
  std::vector<EvaluationRecord> evaluations_;
  std::optional<EvaluationProgress> progress_;
  std::deque<CheckpointRecord> checkpoints_;
  std::deque<NoticeRecord> notices_, turns_;  ///< all kinds; only those that begin or end an attempt
  std::deque<RunEvent> events_;
  std::vector<RankStatus> ranks_;
  std::optional<RunSummary> summary_;
};

}  // namespace trainerd::io
