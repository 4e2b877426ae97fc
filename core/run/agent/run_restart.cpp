#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "core/run/agent/failure_file.h"
#include "core/run/agent/passed_over.h"
#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "core/run/worker/evaluation.h"
#include "kernels/base/error.h"

// Part of the run (run.h): after a failure that allows it, another attempt begins from the newest available
// state. Node 0 decides: it ends the ranks of every node, collects which snapshots each node holds, and
// chooses the state that all begin from.

namespace trainerd::core::run {
namespace {

// Time limit for the other nodes to end their ranks and report their snapshots.
constexpr double kRegroupSeconds = 30;
// Time limit for snapshots under way to reach the disk, if the workers restart from it.
constexpr double kDiskSeconds = 60;
// The same for a run that is stopping: a scheduler kills it soon.
constexpr double kStopSeconds = 20;

// How long dropped writes may take to end by themselves before they are cancelled.
constexpr double kOwnEndSeconds = 5;

constexpr std::int64_t kNone = -1;

/// The newest step up to `most` that every node holds; kNone if there is none.
std::int64_t newest_common(const NodeSnapshots& own, const std::map<std::int64_t, Held>& others,
                           std::int64_t most) {
  for (auto held = own.held().rbegin(); held != own.held().rend(); ++held)
    if (held->step <= most && std::all_of(others.begin(), others.end(), [&](const auto& other) {
          const std::vector<std::int64_t>& steps = other.second.steps;
          return std::find(steps.begin(), steps.end(), held->step) != steps.end();
        }))
      return held->step;
  return kNone;
}

bool takes_copies(const Go& go) {
  return std::any_of(go.sources.begin(), go.sources.end(), [](const StateSource& s) { return s.copy; });
}

/// "node 1, node 4".
std::string list_of(const std::vector<std::int64_t>& nodes) {
  std::string text;
  for (const std::int64_t node : nodes) text += (text.empty() ? "node " : ", node ") + std::to_string(node);
  return text;
}

}  // namespace

Run::Next Run::after_failure() {
  if (!membership_.leads()) return regroup_asked_ ? follow_restart() : Next::failure;
  // The run does not grow now; it may later.
  if (std::exchange(grows_, false)) stop_.reset();
  const auto save_and_end = [this] {
    distrust_checkpoints_after(trusted_step());
    if (const auto newest = newest_in_memory(false); newest && membership_.alone()) save_newest(newest->step);
    return Next::failure;
  };
  // Data that cannot be used says nothing against the state.
  if (attempt_->failure()->kind == base::ErrorKind::data && !lost_node_) return save_and_end();
  if (!attempt_->failure()->restarts() || lost_node_) return Next::failure;
  if (!stop_) stop_ = devices_.draining();  // not on the same devices again
  if (rollback_) return roll_back();
  failed_ = series_.failures.add(attempt_->failure()->cause, step_ + 1);
  if (const std::string problem = write_failures(series_.failures, output_.failures()); !problem.empty())
    log::warn("{}", problem);
  if (failed_.ends()) return Next::failure;
  if (job_.restarts == 0 || (!stop_ && !restarts_.take(base::monotonic_seconds()))) return save_and_end();
  return lead_restart();
}

Run::Next Run::lead_restart() {
  log_flights();
  if (!gather_held()) return killed_ ? Next::stop : Next::failure;
  const std::int64_t trusted = trusted_step();
  distrust_checkpoints_after(trusted);
  const bool returns = !away_.empty();
  if (returns && shrinks()) return shrink();
  if (returns && !await_return()) return killed_ ? Next::stop : Next::failure;
  const bool from_disk = std::exchange(without_memory_, false);
  if (from_disk) snapshots_->drop_after(kNone);
  const std::optional<InMemory> memory = from_disk ? std::nullopt : newest_in_memory(returns);
  std::optional<StateChoice> choice;  // where nodes lack what others have
  if (!from_disk && !memory)
    choice = choose_in_memory(std::min(step_, trusted), [this](double seconds) { wait_for_events(seconds); });
  if (killed_) return Next::stop;
  if (!attempt_->failure()->restarts() || lost_node_) return Next::failure;
  // What a node that comes back had is in its partner's copy alone. One that could not get it has made no
  // step.
  const std::int64_t common = from_disk && !returns ? start_.step
                              : choice              ? choice->cut.step
                              : returns             ? (memory ? memory->step : kNone)
                                                    : newest_common(*snapshots_, held_, trusted);
  if (choice) give_up_incomplete_saves();  // some nodes have no part of them
  drop_saves_after(common);
  parts_.forget_after(common);
  dropped_after_ = common;
  if (stop_) return stop_in_place(std::max(common, start_.step));
  Go go{.last_good = last_good_, .order = start_.order, .attempt = attempt_->number() + 1};
  if (memory) {
    go.from_memory = true;
    go.step = memory->step;
    go.cursor = memory->cursor;
    go.tokens = memory->tokens;
    go.fetch = memory->fetch;
  } else if (choice) {
    go.from_memory = true;
    go.step = choice->cut.step;
    go.cursor = choice->cut.cursor;
    go.tokens = choice->cut.tokens;
    go.cut = choice->cut;
    go.sources = choice->sources;
  } else if (finish_saves(kDiskSeconds); first_step_ > std::max(surviving_.disk_step, completed_step_)) {
    return begin_anew_from_disk();
  } else if (const std::string problem = find_checkpoint(go); !problem.empty()) {
    log::error("the workers do not start again: {}", problem);
    return Next::failure;
  }
  go.evaluate_first =
      go.step > 0 && evaluation_due(job_, go.step) && std::min(evaluated_step_, go.step) < go.step;
  go.reason = attempt_->failure()->message;
  if (!prepare_restart(go)) return killed_ ? Next::stop : Next::failure;
  if (stop_) return stop_in_place(go.step);  // requested meanwhile
  go.folders = folders_;
  go.faults_done = start_.faults_done;
  go.spikes = start_.spikes = spike_history(go.step);
  // An agent that joins now may have to lead later.
  go.head = io::to_json(training_state(go.step, go.cursor, go.tokens), {});
  if (!membership_.alone()) membership_.begin(go);
  next_ = go;
  return Next::attempt;
}

/// The run began from memory, at a later step than any checkpoint on the disk: its records must be cut back
/// before it goes on from there, as those of a job that is started again are.
Run::Next Run::begin_anew_from_disk() {
  series_.nodes = nodes_that_go_on();
  if (!series_.nodes) return killed_ ? Next::stop : Next::failure;
  series_.from_disk = true;
  record_begin();
  notify(io::NoticeKind::warning, attempt_->failure()->message +
                                      "; the state in memory is lost: the run goes on from the newest "
                                      "checkpoint");
  resizes_ = true;
  return Next::resize;
}

/// A run that is to stop has no use for other workers: what is held reaches the disk, and that is its end.
Run::Next Run::stop_in_place(std::int64_t step) {
  notify(io::NoticeKind::warning,
         attempt_->failure()->message + "; the run is stopping, so the workers do not start again");
  stop_between_ = true;
  step_ = step;
  save_newest(step);
  writer_.end_within(kStopSeconds);
  finish_saves(kStopSeconds);
  return Next::stop;
}

/// Writes the snapshot of `step` to the disk if it is held in memory only.
void Run::save_newest(std::int64_t step) {
  const HeldStep* held = snapshots_->find(step);
  if (held == nullptr || step <= completed_step_ || saving_.contains(step)) return;
  membership_.send(SaveHeld{step});
  parts_.retake(step);
  save_held(*held, 0);
  finish_saves(kStopSeconds);
}

/// Ends the ranks of all nodes and collects what each node holds. Returns false if the run must end.
bool Run::gather_held() {
  if (membership_.alone()) return true;
  held_.clear();
  membership_.send(Regroup{attempt_->number()});
  const double end = base::monotonic_seconds() + kRegroupSeconds;
  while (std::cmp_less(held_.size(), membership_.nodes() - 1 - std::ssize(away_))) {
    const double left = end - base::monotonic_seconds();
    if (left <= 0) {
      std::set<std::int64_t> late;
      for (std::int64_t node = 1; node < membership_.nodes(); ++node)
        if (!held_.contains(node) && !away_.contains(node)) late.insert(node);
      log::error("{} did not end {} ranks within {} s", names_of(late), late.size() == 1 ? "its" : "their",
                 kRegroupSeconds);
    }
    if (left <= 0 || killed_ || lost_node_) return false;
    wait_for_events(left);
  }
  // A failure reported meanwhile may be one that allows no restart.
  return attempt_->failure()->restarts() && !killed_ && !lost_node_;
}

/// Fills in `go` from the newest checkpoint on the disk. Returns why there is none to begin from; empty if
/// there is one, or the run starts from step 1.
std::string Run::find_checkpoint(Go& go) {
  if (!finish_saves(kDiskSeconds)) return "snapshots that are under way do not reach the disk";
  const auto found = find_newest();
  if (first_cursor_) go.cursor = *first_cursor_;
  if (!found && surviving_.disk_step == 0) return "";  // from the start
  if (!found || found->where.step < surviving_.disk_step)
    return "the checkpoint of step " + std::to_string(surviving_.disk_step) + " is not there any more";
  const io::TrainingState& state = found->manifest.state;
  go.last_good = go.resume_path = last_good_ = found->where.path;
  go.step = state.step;
  if (!first_cursor_ || go.step > first_step_) go.cursor = state.cursor;
  go.tokens = state.tokens;
  return "";
}

/// Waits for the saves under way. Returns true if all are done.
bool Run::finish_saves(double seconds) {
  const double end = base::monotonic_seconds() + seconds;
  const auto pending = [this] { return writer_.pending() > 0 || !parts_.none(); };
  while (pending() && !killed_ && !lost_node_ && base::monotonic_seconds() < end) {
    wait_for_events(end - base::monotonic_seconds());
    if (!away_.empty()) give_up_saves_of_lost();  // a node was lost meanwhile
  }
  return !pending();
}

/// Ends this node's part of the attempt and waits for the leader's decision on the next one.
Run::Next Run::follow_restart() {
  log_flights();
  Held held{
      .attempt = attempt_->number(), .self_contained = snapshots_->self_contained(), .copies = held_copies()};
  for (const HeldStep& step : snapshots_->held()) {
    held.steps.push_back(step.step);
    if (taken(step)) held.taken.push_back(step.step);
  }
  regroup_asked_ = false;
  membership_.send(held);
  while (!next_ && !resizes_ && !membership_.over() && !killed_ && !lost_node_) wait_for_events(std::nullopt);
  if (resizes_) return Next::resize;
  if (!killed_ && ended_by_leader()) throw_received_failure();
  if (killed_ || ended_by_leader()) return Next::stop;
  if (!next_ || !prepare_restart(*next_)) return Next::failure;
  folders_ = next_->folders;
  return Next::attempt;
}

/// Prepares the next attempt, on the leader and the followers. Returns false if it cannot begin.
bool Run::prepare_restart(const Go& go) {
  drop_saves_after(go.step);
  parts_.forget_after(go.step);
  snapshots_->drop_after(go.from_memory ? go.step : kNone);
  // An earlier write of a step must have ended before the step is saved again.
  if (partner_) partner_->stop_sending();
  const double limit = std::min(kRegroupSeconds, job_.checkpoint.give_up_seconds),
               end = base::monotonic_seconds() + limit,
               cancel_at = base::monotonic_seconds() + std::min(kOwnEndSeconds, limit / 2);
  const auto dropped = [this] {
    return std::any_of(saving_.begin(), saving_.end(), [](const auto& s) { return s.second.dropped; });
  };
  while ((dropped() || sent_step_) && !killed_ && !lost_node_ && base::monotonic_seconds() < end) {
    const bool waits = base::monotonic_seconds() < cancel_at;
    if (!waits) cancel_dropped();
    wait_for_events(std::max(0.0, (waits ? cancel_at : end) - base::monotonic_seconds()));
  }
  if (killed_ || lost_node_) return false;
  if (dropped()) {
    // This is closer to the cause than the failure that ended the attempt.
    fail({base::ErrorKind::comm,
          go.reason + "; the workers cannot start again: an unfinished checkpoint cannot be written", 2});
    return false;
  }
  writer_.go_on();  // the ranks may have ended, to run with more nodes, when one was lost
  record_restart(go);
  if (!membership_.leads()) {
    start_.faults_done = go.faults_done, start_.spikes = go.spikes;
    keep_history(series_, go.spikes, go.step);
  }
  start_.resume_path = go.resume_path;
  start_.step = step_ = go.step;
  start_.cursor = go.cursor;
  start_.tokens = go.tokens;
  start_.evaluate_first = go.evaluate_first;
  evaluated_step_ = std::min(evaluated_step_, go.step);
  if (!go.from_memory) series_.survived.clear();
  if (partner_) forget_copies(go);
  meet_exchange(go.attempt);
  ++restarted_;
  if (cadence_) cadence_->add_interruption();
  return true;
}

void Run::record_restart(const Go& go) {
  io::NoticeRecord notice{.kind = io::NoticeKind::restart, .step = go.step, .message = {}, .details = {}};
  notice.message =
      "restarted: " + go.reason + "; the workers start again from step " + std::to_string(go.step) + " (" +
      (!go.sources.empty()      ? to_text(go)
       : !go.fetch.empty()      ? "snapshot in memory, which the partners of " + list_of(go.fetch) + " kept"
       : go.from_memory         ? "snapshot in memory"
       : go.resume_path.empty() ? "the start"
                                : "checkpoint " + go.resume_path) +
      ")";
  if (const std::string evidence = failed_.evidence(); !evidence.empty()) notice.details.push_back(evidence);
  notice.wall_time = base::wall_seconds();
  io::EarlierAttempt earlier{.last_step = step_, .lost_seconds = 0, .wall_time = last_step_at_};
  while (!latest_steps_.empty() && latest_steps_.back().first > go.step) {
    earlier.lost_seconds += latest_steps_.back().second;
    latest_steps_.pop_back();
  }
  notice.earlier = earlier;
  begin_recovery();
  sinks_.each(&io::MetricsSink::on_restart,
              io::RestartRecord{.tier = !go.fetch.empty() || takes_copies(go) ? io::RestoreTier::partner
                                        : go.from_memory                      ? io::RestoreTier::memory
                                        : go.resume_path.empty()              ? io::RestoreTier::start
                                                                              : io::RestoreTier::disk,
                                .step = go.step,
                                .tokens = go.tokens});
  log::warn("{}", notice.message);
  // Before its ranks are ready a run records nothing; the notice waits.
  if (sinks_started_) sinks_.each(&io::MetricsSink::on_notice, notice);
  else changes_.push_back(std::move(notice));
}

}  // namespace trainerd::core::run
