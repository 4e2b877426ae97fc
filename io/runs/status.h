#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/records/ranks.h"
#include "io/records/records.h"
#include "io/runs/series.h"

namespace trainerd::io {

enum class RunState : std::uint8_t {
  starting,  ///< no rank has begun to train yet
  training,
  evaluating,
  done,
  stopped,
  failed,
  lost,  ///< its records stop without an end and no process holds them: killed, or its host was lost
};
const char* name_of(RunState state);
/// True if a run in that state is still running.
constexpr bool is_alive(RunState state) { return state <= RunState::evaluating; }

struct RankStatus {
  RankState state = RankState::starting;
  std::int64_t node = 0;
  std::int64_t planned_bytes = 0;  ///< 0: not known
  std::optional<std::int64_t> used_bytes = {};
  std::string doing = {}, last = {};  ///< RankDoingRecord; empty: not known
  double doing_at = 0;                ///< Unix seconds of its last progress
};

struct RunEvent {
  double wall_time = 0;  ///< Unix seconds
  std::int64_t step = 0;
  std::string kind;  ///< as in events.jsonl
  std::string message;
};

/// Status of a run, as `trainerd top` and the live page show it. Its size does not grow with the run.
struct RunStatus {
  RunInfo info;    ///< steps 0: not known
  double now = 0;  ///< Unix seconds of this status
  RunState state = RunState::starting;
  std::string outcome;  ///< one line; empty while the run is alive
  double began = 0;     ///< the first attempt, Unix seconds; 0: not known
  double seconds = 0;   ///< total of all attempts
  std::int64_t attempts = 1;
  std::int64_t step = 0, tokens = 0;
  std::optional<StepRecord> last;  ///< the latest step
  std::optional<EvaluationRecord> evaluation;
  std::optional<EvaluationProgress> evaluation_progress;
  std::optional<CheckpointRecord> checkpoint;
  // Over the latest steps of this attempt.
  double step_seconds = 0;  ///< from one step to the next; 0: not known
  std::optional<double> eta_seconds;
  std::int64_t recent_steps = 0;
  std::array<double, base::kLedgerParts.size()> recent_time{};  ///< seconds per step
  std::array<double, base::kLedgerParts.size()> total_time{};   ///< total of all steps, seconds
  std::vector<RankStatus> ranks;                                ///< by rank; empty: not known
  std::int64_t memory_planned_bytes = 0;  ///< of the ranks included in `memory_used_bytes`
  std::optional<std::int64_t> memory_used_bytes;
  PredictionRecord prediction;
  std::vector<RunEvent> events;    ///< the latest, oldest first
  std::vector<StepBucket> series;  ///< all steps, coarse
  std::vector<EvaluationRecord> evaluations;
  std::vector<std::int64_t> resumed_after;  ///< steps after which later attempts began
};

/// Writes one JSON object for `trainerd top` and the live page, with the names above; ranks and series as
/// columns.
std::string to_json(const RunStatus& status);
/// Throws DataError for invalid text.
RunStatus parse_run_status(const std::string& text);

/// run.json of an output directory: the facts known before the first step, and the plan's prediction.
std::string run_json(const RunInfo& info, const PredictionRecord& prediction);
/// Throws DataError.
void parse_run_json(const std::string& text, RunInfo& info, PredictionRecord& prediction);

}  // namespace trainerd::io
