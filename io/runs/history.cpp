#include "io/runs/history.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "io/text/text.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kRecentSteps = 64;
constexpr std::size_t kShownBuckets = 240;
constexpr std::size_t kEvents = 48, kShownEvaluations = 256;
constexpr std::size_t kNotices = 4096, kTurns = 4096, kCheckpoints = 4096, kEvaluations = 4096;
// With more ranks a grid would be unreadable, and the status too long to send every second.
constexpr std::int64_t kMaxRanks = 1 << 16;
constexpr std::int64_t kDoingRanks = 1024;  // of which it is kept what they do: a text each

template <class Record>
void keep_latest(std::deque<Record>& records, std::size_t limit) {
  while (records.size() > limit) records.pop_front();
}

// The last one is kept.
std::vector<EvaluationRecord> every_other(const std::vector<EvaluationRecord>& records) {
  std::vector<EvaluationRecord> kept;
  for (std::size_t i = 1 - records.size() % 2; i < records.size(); i += 2) kept.push_back(records[i]);
  return kept;
}

bool is_turn(NoticeKind kind) {
  return kind != NoticeKind::change && kind != NoticeKind::warning && kind != NoticeKind::injected &&
         kind != NoticeKind::corruption && kind != NoticeKind::withdrawn && kind != NoticeKind::spike &&
         kind != NoticeKind::recovered && kind != NoticeKind::graphs && kind != NoticeKind::overflow;
}

}  // namespace

void RunHistory::set_info(const RunInfo& info) {
  info_ = info;
  if (last_) return;  // the logs have newer values
  step_ = info.start_step;
  tokens_ = info.start_tokens;
}

void RunHistory::add(const StepRecord& record) {
  progress_.reset();
  last_ = record;
  step_ = record.step;
  tokens_ = record.tokens;
  if (!recent_.empty() && recent_.back().wall_time < begun_at_ && record.wall_time >= begun_at_)
    recent_.clear();
  recent_.push_back({record.wall_time, record.step_seconds, record.time});
  keep_latest(recent_, kRecentSteps);
  if (record.step <= drawn_step_) return;  // repeated after a restart: its values are already in the series
  drawn_step_ = record.step;
  series_.add(record);
  for (std::size_t i = 0; i < total_time_.size(); ++i)
    total_time_[i] += std::max(0.0, record.time[base::kLedgerParts[i].part]);
}

void RunHistory::add(const EvaluationRecord& record) {
  progress_.reset();
  std::erase_if(evaluations_, [&](const EvaluationRecord& e) { return e.step >= record.step; });
  if (evaluations_.size() == kEvaluations) evaluations_ = every_other(evaluations_);
  evaluations_.push_back(record);
  add_event(record.wall_time, record.step, "evaluation",
            (record.averaged ? "validation loss of the averages " : "validation loss ") +
                short_number(record.loss) + " in " + short_duration(record.seconds));
}

void RunHistory::add(const CheckpointRecord& record) {
  checkpoints_.push_back(record);
  keep_latest(checkpoints_, kCheckpoints);
  add_event(record.wall_time, record.step, "checkpoint",
            short_bytes(record.bytes) + " in " + short_duration(record.write_seconds));
}

void RunHistory::add(const NoticeRecord& record) {
  notices_.push_back(record);
  keep_latest(notices_, kNotices);
  add_event(record.wall_time, record.step, name_of(record.kind), record.message);
  if (!is_turn(record.kind)) return;
  turns_.push_back(record);
  keep_latest(turns_, kTurns);
  const bool begins = record.kind == NoticeKind::start || record.kind == NoticeKind::resume ||
                      record.kind == NoticeKind::restart;
  // Step times before a restart do not predict later ones. Logs are read one after the other, so steps may
  // come later.
  if (begins) begun_at_ = record.wall_time;
  if (begins && !recent_.empty() && recent_.back().wall_time <= begun_at_) recent_.clear();
}

void RunHistory::add(const RankStateRecord& record) {
  const std::int64_t end = std::min(record.first + record.count, kMaxRanks);
  if (std::cmp_less(ranks_.size(), end)) ranks_.resize(static_cast<std::size_t>(end));
  for (std::int64_t rank = record.first; rank < end; ++rank) {
    ranks_[static_cast<std::size_t>(rank)].state = record.state;
    ranks_[static_cast<std::size_t>(rank)].node = record.node;
  }
}

void RunHistory::add(const RankMemoryRecord& record) {
  if (record.rank >= kMaxRanks) return;
  if (std::cmp_less_equal(ranks_.size(), record.rank))
    ranks_.resize(static_cast<std::size_t>(record.rank) + 1);
  RankStatus& rank = ranks_[static_cast<std::size_t>(record.rank)];
  rank.planned_bytes = record.planned_bytes;
  rank.used_bytes = record.used_bytes;
}

void RunHistory::add(const RankDoingRecord& record, double now) {
  if (record.rank >= kDoingRanks) return;
  if (std::cmp_less_equal(ranks_.size(), record.rank))
    ranks_.resize(static_cast<std::size_t>(record.rank) + 1);
  RankStatus& rank = ranks_[static_cast<std::size_t>(record.rank)];
  rank.doing = record.doing, rank.last = record.last;
  rank.doing_at = now - record.seconds;
}

void RunHistory::restart(const RestartRecord& record) {
  progress_.reset();
  recent_.clear();
  std::erase_if(evaluations_, [&](const EvaluationRecord& e) { return e.step > record.step; });
  step_ = record.step;
  tokens_ = record.tokens;
}

void RunHistory::finish(const RunSummary& summary) {
  summary_ = summary;
  step_ = summary.step;
}

void RunHistory::add_event(double wall_time, std::int64_t step, const char* kind, std::string message) {
  events_.push_back({wall_time, step, kind, std::move(message)});
  keep_latest(events_, kEvents);
}

RunState RunHistory::state() const {
  if (summary_)
    return summary_->outcome == "done"                ? RunState::done
           : summary_->outcome.starts_with("stopped") ? RunState::stopped
                                                      : RunState::failed;
  if (!turns_.empty()) {
    switch (turns_.back().kind) {
      case NoticeKind::finish: return RunState::done;
      case NoticeKind::stop: return RunState::stopped;
      case NoticeKind::failure: return RunState::failed;
      default: break;
    }
  }
  if (progress_) return RunState::evaluating;
  return turns_.empty() && !last_ ? RunState::starting : RunState::training;
}

void RunHistory::add_pace(RunStatus& status) const {
  status.recent_steps = static_cast<std::int64_t>(recent_.size());
  if (recent_.empty()) return;
  double all = 0;
  for (const RecentStep& step : recent_) {
    all += step.step_seconds;
    for (std::size_t i = 0; i < status.recent_time.size(); ++i)
      status.recent_time[i] += std::max(0.0, step.time[base::kLedgerParts[i].part]);
  }
  const auto count = static_cast<double>(recent_.size());
  for (double& seconds : status.recent_time) seconds /= count;
  status.step_seconds = all / count;
  // Includes evaluations and checkpoints between the steps, if the log has the time of each step.
  const double span = recent_.back().wall_time - recent_.front().wall_time;
  const double each = recent_.size() > 1 && recent_.front().wall_time > 0 && span > 0 ? span / (count - 1)
                                                                                      : status.step_seconds;
  // From the pace of the window's steps, without the first one's if their times are of the log.
  if (is_alive(status.state) && info_.steps > 0) {
    const std::int64_t window = static_cast<std::int64_t>(recent_.size());
    const std::int64_t counted = recent_.size() > 1 ? window - 1 : window;
    const double pace = each * static_cast<double>(counted) / info_.work(step_ - counted, step_);
    status.eta_seconds = pace * info_.work(step_, std::max(info_.steps, step_));
  }
}

void RunHistory::add_memory(RunStatus& status) const {
  std::int64_t used = 0, planned = 0;
  for (const RankStatus& rank : ranks_)
    if (rank.used_bytes) used += *rank.used_bytes, planned += rank.planned_bytes;
  for (const PredictionTerm& term : prediction_.terms)
    if (used == 0 && term.kind == PredictionTerm::Kind::memory_bytes) {
      used = static_cast<std::int64_t>(term.measured);
      planned = static_cast<std::int64_t>(term.predicted);
    }
  status.memory_planned_bytes = used > 0 ? planned : info_.memory_planned_bytes;
  if (used > 0) status.memory_used_bytes = used;
}

RunStatus RunHistory::status(double now) const {
  RunStatus status;
  status.info = info_;
  status.now = now;
  status.state = state();
  const std::vector<Attempt> attempts = this->attempts();
  if (!attempts.empty()) {
    status.began = attempts.front().begin;
    status.attempts = static_cast<std::int64_t>(attempts.size());
    status.seconds = total_seconds(attempts, now);
    if (!is_alive(status.state)) status.outcome = attempts.back().outcome;
    for (std::size_t i = 1; i < attempts.size(); ++i) status.resumed_after.push_back(attempts[i].start_step);
  }
  status.step = step_;
  status.tokens = tokens_;
  status.last = last_;
  if (!evaluations_.empty()) status.evaluation = evaluations_.back();
  status.evaluation_progress = progress_;
  if (!checkpoints_.empty()) status.checkpoint = checkpoints_.back();
  add_pace(status);
  status.total_time = total_time_;
  status.ranks = ranks_;
  add_memory(status);
  status.prediction = prediction_;
  status.events.assign(events_.begin(), events_.end());
  status.series = series_.coarse(kShownBuckets);
  status.evaluations = evaluations_;
  while (status.evaluations.size() > kShownEvaluations) status.evaluations = every_other(status.evaluations);
  return status;
}

}  // namespace trainerd::io
