#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/run/agent/run.h"
#include "core/run/log/log.h"

// Part of the run (run.h): the leader measures the time from a failure to the next step.

namespace trainerd::core::run {

/// Called when the next attempt's first step is chosen. If that attempt fails before its first step, the
/// recovery continues and gets longer.
void Run::begin_recovery() {
  if (!membership_.leads()) return;
  const double now = base::monotonic_seconds();
  if (!recovery_) {
    failure_noticed_ = attempt_->failure() ? attempt_->failed_at() : now;
    recovery_ = io::Recovery{.noticed = base::wall_seconds() - (now - failure_noticed_)};
  }
  recovery_->decide_seconds = now - failure_noticed_;
  ranks_begin_ = now;
}

void Run::recovery_is_ready(const ReadyRanks& ready) {
  if (!recovery_) return;
  recovery_->ready_seconds = base::monotonic_seconds() - ranks_begin_;
  recovery_->groups_seconds = 0;
  for (const auto& [rank, m] : ready.ranks())
    recovery_->groups_seconds = std::max(recovery_->groups_seconds, m.groups_seconds);
}

void Run::end_recovery(const io::StepRecord& first) {
  if (!recovery_) return;
  // The first ready rank begins the step early and waits in it for the others.
  recovery_->total_seconds = std::max(base::monotonic_seconds() - first.step_seconds - failure_noticed_,
                                      recovery_->decide_seconds + recovery_->ready_seconds);
  io::NoticeRecord notice{
      .kind = io::NoticeKind::recovered, .step = first.step, .message = {}, .details = {}};
  notice.message = fmt::format(
      "recovered: step {} began {:.2f} s after the failure was noticed: {:.2f} s until the ranks had ended "
      "and "
      "their state was chosen, {:.2f} s until all ranks were ready, {:.2f} s of it for their groups",
      first.step, recovery_->total_seconds, recovery_->decide_seconds, recovery_->ready_seconds,
      recovery_->groups_seconds);
  notice.wall_time = base::wall_seconds();
  notice.recovery = std::exchange(recovery_, std::nullopt);
  log::info("{}", notice.message);
  sinks_.each(&io::MetricsSink::on_notice, notice);
}

}  // namespace trainerd::core::run
