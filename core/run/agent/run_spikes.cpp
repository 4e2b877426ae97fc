#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/run/agent/passed_over.h"
#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "core/run/supervise/spike_watch.h"
#include "kernels/base/error.h"

// Part of the run (run.h): findings of the step judges before an update (core/run/worker/step_judge.h).

namespace trainerd::core::run {
namespace {

// Number of windows of judged steps that are kept, so that a rollback can go back that far.
constexpr std::int64_t kWindowsKept = 64;
// Minimum time for snapshots under way to reach the disk.
constexpr double kSavesSeconds = 60;
// The same for a run that is stopping: a scheduler kills it soon.
constexpr double kStoppingSavesSeconds = 20;

}  // namespace

void Run::on_differing(ResultsDiffer m) {
  if (!membership_.leads()) {
    m.attempt = attempt_->number();
    return membership_.send(m);
  }
  if (m.found == ResultsDiffer::Found::changed_state) return on_changed_state(m);
  if (attempt_->failure()) return;
  if (!differences_ || differences_attempt_ != attempt_->number()) {
    differences_.emplace();
    differences_attempt_ = attempt_->number();
  }
  const std::optional<DifferenceVerdict> verdict = differences_->add(std::move(m));
  if (!verdict) return;
  notify(io::NoticeKind::corruption, verdict->message, verdict->details);
  series_.corruptions.push_back(verdict->ranks);
  sinks_.each(&io::MetricsSink::on_corruption, io::CorruptionRecord{.ranks = verdict->ranks});
  if (!verdict->fatal) return;
  std::string message = verdict->message;
  for (const std::string& detail : verdict->details) message += "\n  " + detail;
  fail({base::ErrorKind::device, message, 3});
}

void Run::on_spike(const SpikeActed& m) {
  const bool back = m.action == job::SpikeAction::rollback;
  if (back && attempt_->failure()) return;  // the ranks begin again and judge the step again
  const auto action = static_cast<std::size_t>(m.action);
  series_.spikes_used.resize(job::kSpikeWords.size());
  series_.spikes_used[action] = m.used;
  notify(io::NoticeKind::spike, m.message);
  sinks_.each(&io::MetricsSink::on_spike,
              io::SpikeRecord{.action = std::string(job::kSpikeWords.at(action))});
  if (!back) return;
  rollback_ = m;
  fail({base::ErrorKind::diverged, m.message, 3, true});
}

/// Keeps the values that later steps are compared with, also in later attempts.
void Run::add_judged(const io::StepRecord& record) {
  std::deque<RunSeries::Judged>& judged = series_.judged;
  const job::SpikesOptions& options = job_.supervise.spikes;
  // A step that is done again was reported before.
  const bool again = !judged.empty() && judged.back().step >= record.step;
  if (!options.on() && membership_.leads() && !again && !record.skipped) {
    const SpikeHistory history = spike_history(record.step - 1);
    SpikeWatch watch(options, 0);
    for (std::size_t i = 0; i < history.losses.size(); ++i)
      watch.add({.loss = history.losses[i], .grad_norm = history.norms[i]});
    if (const std::string cause = watch.judge({.loss = record.loss, .grad_norm = record.grad_norm});
        !cause.empty())
      notify(io::NoticeKind::spike, "spike in step " + std::to_string(record.step) + ": " + cause +
                                        "; supervise.spikes has no policy");
  }
  while (!judged.empty() && judged.back().step >= record.step) judged.pop_back();
  if (!record.skipped) judged.push_back({record.step, record.loss, record.grad_norm});
  if (std::cmp_greater(judged.size(), kWindowsKept * job_.supervise.spikes.window)) judged.pop_front();
}

/// The history for an attempt that begins after `step`.
SpikeHistory Run::spike_history(std::int64_t step) const {
  SpikeHistory history{.used = series_.spikes_used};
  for (const RunSeries::Judged& judged : series_.judged) {
    if (judged.step > step) break;
    history.losses.push_back(judged.loss);
    history.norms.push_back(judged.grad_norm);
  }
  const auto latest = [&](std::vector<double>& values) {
    const std::int64_t more = std::ssize(values) - job_.supervise.spikes.window;
    if (more > 0) values.erase(values.begin(), values.begin() + more);
  };
  latest(history.losses), latest(history.norms);
  return history;
}

/// The step of the newest checkpoint before `step` that is tagged good; without any tag, of the newest one;
/// 0: the start. If the run has already gone back from this step or a later one, an earlier checkpoint is
/// chosen if there is one.
std::int64_t Run::rollback_target(std::int64_t step) const {
  std::vector<io::StoredCheckpoint> stored = store_.list();
  if (job_.checkpoint.durable.on()) try {
      const std::vector<io::StoredCheckpoint> durable = tier_store().list();
      stored.insert(stored.end(), durable.begin(), durable.end());
    } catch (const base::CheckpointError& error) {
      log::warn("the durable tier cannot be looked at: {}", error.what());
    }
  const auto newest = [&](bool good, std::int64_t before) {
    std::int64_t found = 0;
    for (const io::StoredCheckpoint& checkpoint : stored)
      if (checkpoint.step < before && (checkpoint.good || !good)) found = std::max(found, checkpoint.step);
    return found;
  };
  const auto choose = [&](std::int64_t before) {
    const std::int64_t good = newest(true, before);
    return good > 0 ? good : newest(false, before);
  };
  if (series_.went_back && step <= series_.went_back->from)
    if (const std::int64_t earlier = choose(series_.went_back->to); earlier > 0) return earlier;
  return choose(step);
}

void Run::withdraw_after(std::int64_t step) {
  const auto withdraw = [&](const io::CheckpointStore& store, io::NoticeKind kind) {
    try {
      for (const io::StoredCheckpoint& checkpoint : store.list_attempts()) {
        if (checkpoint.step <= step) continue;
        store.withdraw(checkpoint.name());
        notify(kind, fmt::format("checkpoint {} does not count any more: the run goes back to step {}",
                                 checkpoint.path, step));
      }
    } catch (const base::CheckpointError& error) {
      notify(io::NoticeKind::warning,
             fmt::format("checkpoints after step {}, to which the run goes back, could not be withdrawn: {}",
                         step, error.what()));
    }
  };
  withdraw(store_, io::NoticeKind::withdrawn);
  if (!durable_) return;
  drop_durable_after(step, "the run goes back");
  await_dropped_copy();
  withdraw(tier_store(), io::NoticeKind::spike);
}

/// Waits for the snapshots under way: the run may go back to one of them. A failing disk gets as much time as
/// during training.
bool Run::finish_saves_before_rollback() {
  if (!away_.empty()) give_up_saves_of_lost();
  double end = base::monotonic_seconds() + std::max(kSavesSeconds, job_.checkpoint.give_up_seconds);
  for (bool stopping = false; !finish_saves(1);) {
    if (killed_ || lost_node_ || base::monotonic_seconds() > end) {
      log::error("snapshots that are under way do not reach the disk");
      return false;
    }
    if (stop_ && !std::exchange(stopping, true))
      end = std::min(end, base::monotonic_seconds() + kStoppingSavesSeconds);
  }
  return !killed_ && !lost_node_;
}

/// The number of nodes that the run continues with; none if it cannot.
std::optional<std::int64_t> Run::nodes_that_go_on() {
  series_.layout = membership_.layout();
  if (away_.empty()) return membership_.nodes();
  if (!shrinks()) return await_return() ? std::optional(membership_.nodes()) : std::nullopt;
  const JobSize size = size_of_the_rest().value();
  const std::int64_t nodes = size.job.cluster.nodes;
  series_.layout = size.layout;
  notify(io::NoticeKind::node,
         fmt::format("{} {} lost meanwhile; the run goes on with {} {}", names_of(away_),
                     away_.size() == 1 ? "was" : "were", nodes, nodes == 1 ? "node" : "nodes"));
  return nodes;
}

/// Prepares to continue from an earlier checkpoint with a new `Run` (RunSeries). It starts like a resumed
/// job, with its own records, sinks and sample order.
Run::Next Run::roll_back() {
  const SpikeActed spike = *rollback_;
  if (!gather_held() || !finish_saves_before_rollback()) return killed_ ? Next::stop : Next::failure;
  const std::int64_t target = rollback_target(spike.step);
  const bool skips = job_.supervise.spikes.data == job::RollbackData::skip;
  // Written before the later checkpoints are withdrawn: it has no effect while one of them counts.
  const std::string unwritten = pass_samples_over(
      series_, skips ? std::optional(RunSeries::PassedOver{target, spike.cursor}) : std::nullopt,
      output_.passed_over());
  if (!unwritten.empty())
    notify(io::NoticeKind::warning,
           "the samples that the run passes over could not be written down; a later start of the job reads "
           "them again: " +
               unwritten);
  withdraw_after(target);
  notify(io::NoticeKind::spike,
         fmt::format("the run goes back to {}; {}", target > 0 ? fmt::format("step {}", target) : "its start",
                     skips ? fmt::format("the samples of steps {} to {} are passed over, and step {} begins "
                                         "with sample {}",
                                         target + 1, spike.step, target + 1, spike.cursor)
                           : fmt::format("steps {} to {} are done again", target + 1, spike.step)));
  series_.went_back = {.from = spike.step, .to = target};
  if (stop_) {
    stop_between_ = true;
    return Next::stop;
  }
  series_.nodes = nodes_that_go_on();
  if (!series_.nodes) return killed_ ? Next::stop : Next::failure;
  series_.returns_to = target;
  resizes_ = true;
  return Next::resize;
}

}  // namespace trainerd::core::run
