#include "core/run/agent/run.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <span>
#include <utility>

#include "core/plan/cost/units.h"
#include "core/plan/predict/plan.h"
#include "core/run/agent/output_safety.h"
#include "core/run/log/log.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "io/checkpoint/tiers.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

// Time after the first failure in which the other ranks can report what they know of it.
constexpr double kLastWordsSeconds = 1.0;

// The same after a worker ended by a signal: that is the cause, and the others only waited for it.
constexpr double kDeathSeconds = 0.1;

// Additional time in which a node waits for the leader's verdict, which may be that another node is lost. The
// leader notices a lost node after supervise.dead_after.
constexpr double kVerdictSeconds = 5.0;

// Time limit for a failed run to write its complete snapshots.
constexpr double kLastSavesSeconds = 20.0;

// A shared file system may show another node's new file late: NFS caches a file's absence.
constexpr double kSharedSeconds = 30.0;

/// Throws if the durable tier holds checkpoints of an earlier run: the next start would take the newest of
/// them for this run's.
void refuse_durable_copies(const AgentOptions& options) {
  const std::string& to = options.job.checkpoint.durable.to;
  if (to.empty()) return;
  const io::CheckpointStore durable = durable_store(options);
  io::require_tier_of(*durable.storage(), durable_owner(options));
  if (const auto copies = durable.list(); !copies.empty())
    throw base::spec_error("--fresh: the durable tier holds checkpoints of an earlier run, the newest is " +
                           copies.front().path +
                           ": set checkpoint.durable.to to another place, or remove them");
}

/// With --fresh an earlier run's output is moved aside.
OutputDirectory::Earlier earlier_of(const AgentOptions& options) {
  require_safe_output(options);
  if (!options.fresh) return OutputDirectory::Earlier::kept;
  refuse_durable_copies(options);
  return OutputDirectory::Earlier::moved_aside;
}

/// The leader locks the output directory. The other nodes wait for its mark.
OutputDirectory directory_of(const AgentOptions& options, const Membership& membership) {
  const std::string &path = options.job.output, &run = membership.go().run;
  membership.require_lead();
  if (membership.leads()) return OutputDirectory(path, earlier_of(options), LeadMark::parse(run));
  return OutputDirectory::marked(path, run, std::min(kSharedSeconds, membership.timeout_seconds()));
}

}  // namespace

Run::Run(const AgentOptions& options, Membership& membership, RunSeries& series)
    : options_(options),
      job_(options.job),
      membership_(membership),
      output_(directory_of(options, membership)),
      topology_(spec::job_topology(job_)),
      store_(run_store()),
      writer_(store_, {.give_up_seconds = job_.checkpoint.give_up_seconds}, membership.write_permit()),
      stop_(membership.stop()),
      series_(series),
      restarts_(series.restarts),
      attempt_(std::make_unique<Attempt>(*this, plan_world(job_, topology_, membership.node()),
                                         membership.go().attempt)),
      parts_(attempt_->plan().layout.grid.ranks()) {
  sinks_.write_while(membership.write_permit());
  announce();
  if (!membership.leads()) return;
  check_smallest();
  plan();
}

/// Computes the predictions that the measured steps are compared with.
void Run::plan() {
  const PlannedWorld& world = attempt_->plan();
  Planned planned;
  for (std::int64_t rank = world.here.first; rank < world.here.first + world.here.count; ++rank)
    planned.bytes[rank] =
        world.ranks.here[static_cast<std::size_t>(rank - world.here.first)].memory.total_bytes();
  if (options_.rates) {
    planned.samples = job_.batch.of_step(std::min(step_ + kComparedSteps.second, job_.steps));
    const plan::Plan plan =
        plan::make_plan(job_.with_batch(planned.samples), spec::with_rates(topology_, *options_.rates));
    if (plan.timed) planned.step_seconds = plan.time.step_seconds, planned.time = plan.time.ranks.front();
    // If every step is verified, the median step is a verified one: all parts but the update run twice.
    if (plan.timed && job_.supervise.verify_every == 1) {
      *planned.step_seconds += plan.verify_seconds;
      for (const base::LedgerPartInfo& part : base::kLedgerParts)
        if (part.part != base::LedgerPart::optimizer) planned.time[part.part] *= 2;
    }
  }
  if (planned.step_seconds) log::info("planned: {} per step", plan::duration(*planned.step_seconds));
  ranks_.plan(planned.step_seconds);
  planned_ = std::move(planned);
}

/// Sends the start of the run to the other nodes.
void Run::begin() {
  require_lead();
  if (!membership_.leads() || membership_.alone()) return;
  output_.mark(membership_.go().run);
  Go go = surviving_.begun_with;  // with the state in memory that it begins from, if it does
  go.last_good = last_good_;
  go.step = step_;
  go.cursor = start_.cursor;
  go.tokens = start_.tokens;
  go.order = start_.order;
  go.evaluate_first = start_.evaluate_first;
  go.resume_path = start_.resume_path;
  go.attempt = attempt_->number();
  go.folders = folders_;
  go.faults_done = start_.faults_done;
  go.spikes = start_.spikes;
  if (!already_trained()) go.head = io::to_json(training_state(step_, start_.cursor, start_.tokens), {});
  membership_.begin(go);
}

AgentResult Run::run() {
  if (already_trained()) {
    begin();
    return already_done();
  }
  // A state that is in memory only must be saved: its ranks begin, and stop.
  const Go& first = membership_.leads() ? surviving_.begun_with : membership_.go();
  if (options_.stop_after && step_ >= *options_.stop_after && !start_.resume_path.empty() &&
      !first.from_memory && !start_.evaluate_first) {
    begin();
    remove_left_targets();
    log::info("step {} is done already, so --stop-after {} leaves nothing to do", step_,
              *options_.stop_after);
    if (membership_.leads() && left_to_copy_) begin_durable(), drain_durable();
    return {step_, 0};
  }
  open_sinks();
  if (membership_.leads()) {
    require_lead();
    output_.write_job(job_);
    if (!tokenizer_.empty()) hf::replace_tokenizer(tokenizer_, output_.path() + "/" + hf::kCompanionFolder);
    if (stopped_before_start()) return {step_, stop_->exit_signal};
  }
  begin_faults();
  preflight_.begin();
  output_.begin();
  begin();
  if (planned_) plan_check_.emplace(*std::move(planned_), step_, job_.steps);
  begin_time_limit();
  begin_cadence();
  if (membership_.leads() && job_.checkpoint.good_after > 0) good_tags_.emplace(job_.checkpoint.good_after);
  begin_sound();
  try {
    begin_durable();
    train();
    drain_writer();
    // Handles a stop request that came meanwhile.
    if (killed_) resizes_ = grows_ = false;
    if (stop_ && !grows_ && membership_.leads() && std::exchange(resizes_, false)) stop_between_ = true;
    if (resizes_ || (grows_ && attempt_->stopped())) return leave_to_next_size();
    drain_durable();
  } catch (const LeaderLost&) {
    leave_to_next_leader();
    throw;
  } catch (const Excluded&) {
    attempt_->kill_workers();
    writer_.abandon();
    if (sinks_started_) finish("goes on without this node");
    throw;
  } catch (const std::exception& error) {
    if (membership_.lead_is_lost()) leave_without_lead(error);
    const End end = end_by(error);
    membership_.finish(end);
    if (discovery_file_) discovery_file_->leave(end.kind);
    end_failed(error.what());
    throw;
  }
  // Returns at once: writing the report could block on a slow or missing disk.
  if (killed_) {
    record_begin();
    record(io::NoticeKind::stop, "stopped at once by " + stop_->reason + " after step " +
                                     std::to_string(step_) + "; the last checkpoint is " + last_good_);
    return {step_, stop_->exit_signal};
  }
  if (!membership_.leads()) {
    finish(membership_.end()->stop_signal == 0 ? "done" : "stopped");
    return {step_, membership_.end()->stop_signal};
  }
  const bool stopped = stop_between_ || attempt_->stopped();
  const int signal = stopped ? stop_->exit_signal : 0;
  membership_.finish({.stop_signal = signal});
  if (stopped)
    record(io::NoticeKind::stop, "stopped by " + stop_->reason + " after step " + std::to_string(step_) +
                                     "; the last checkpoint is " + last_good_);
  else record_done();
  finish(stopped ? "stopped by " + stop_->reason : "done");
  return {step_, signal};
}

// ---- attempts

/// Runs one attempt after the other, until the run is done, stopped, or failed for good.
void Run::train() {
  const PlannedWorld& world = attempt_->plan();
  snapshots_.emplace(world.here, world.ranks.here, rank::snapshot_segments(job_));
  start_.job_yaml = spec::to_yaml(job_);
  if (job_.gemm_algorithms == job::GemmAlgorithms::timed && world.here.first == 0)
    start_.gemm_algorithms = output_.gemm_algorithms();
  begin_partner();
  if (!surviving_.exchange) begin_exchange(), meet_exchange(attempt_->number());
  membership_.admit_late((partner_ != nullptr || membership_.coordinated()) && job_.restarts > 0);
  record_nodes();
  // A node that has come back has its snapshots at its partner.
  const Go& first = membership_.leads() ? surviving_.begun_with : membership_.go();
  const HeldStep* held = first.from_memory ? held_for(first) : nullptr;
  bool in_memory_only = first.from_memory && first.sources.empty();  // what the ranks begin from
  for (bool again = false;; again = true) {
    if (!attempt_->failure()) try {
        if (again) require_same_data(data_, job_, data_files(job_, options_.find_s3));
        attempt_->begin(start_, held, surviving_.gathered);
      } catch (const std::exception&) {  // other data, or a limit of the machine
        attempt_->end_workers();
        if (const auto newest = newest_in_memory(false); newest && membership_.alone())
          save_newest(newest->step);
        throw;
      }
    for (const std::int64_t node : away_) fail_without(node, "it was not there when the ranks began");
    supervise();
    if (killed_) return;
    attempt_->end_workers();
    if (ended_by_leader()) {
      if (membership_.end()->failed) log_flights();
      return throw_received_failure();
    }
    if (stop_between_) {
      if (in_memory_only && membership_.leads()) save_newest(start_.step);
      finish_saves(kLastSavesSeconds);
      return;
    }
    if (resizes_ || (!attempt_->failure() && !regroup_asked_)) return;
    switch (after_failure()) {
      case Next::attempt: break;
      case Next::resize:
      case Next::stop: return;
      case Next::failure: throw_failure();
    }
    dropped_after_.reset();
    ranks_.restart(*attempt_);
    attempt_ = std::make_unique<Attempt>(*this, attempt_->plan(), attempt_->number() + 1);
    completed_folders_.clear(), copied_folders_.clear();
    if (compared_.checkpoints) compared_.checkpoints->settle_all();
    const Go go = *std::exchange(next_, std::nullopt);
    surviving_.gathered.reset();
    held = go.from_memory ? held_for(go) : nullptr;
    in_memory_only = go.from_memory && go.sources.empty();
  }
}

/// With several nodes the leader works until all ranks have finished and every checkpoint is complete; the
/// others work until it tells them to end. A process that does not exit after that is not waited for.
bool Run::working() {
  const bool saves = !parts_.none() || writer_.pending() > 0;
  if (!attempt_->all_finished() || saves || !saving_.empty()) done_at_.reset();
  else if (!done_at_) done_at_ = base::monotonic_seconds();
  const bool left = attempt_->workers_left() &&
                    !(done_at_ && attempt_->workers_stay(base::monotonic_seconds() - *done_at_));
  if (membership_.alone()) return left;
  if (!membership_.leads()) return !membership_.over();
  return left || !attempt_->all_finished() || saves;
}

/// Handles events until the attempt is over.
void Run::supervise() {
  while (working() && !killed_ && !stop_between_ && !regroup_asked_ && !resizes_ && leaderless_.empty()) {
    const bool death = attempt_->failure() && attempt_->failure()->death;
    // A lost leader sends no verdict.
    const bool asks = !membership_.leads() && !lost_node_;
    const double patience = (death ? kDeathSeconds : kLastWordsSeconds) +
                            (asks ? kVerdictSeconds + 2 * job_.supervise.dead_after_seconds : 0);
    const auto left = attempt_->failure()
                          ? std::optional(attempt_->failed_at() + patience - base::monotonic_seconds())
                          : time_left();
    // Failed communication may be caused by a lost node, which is detected within supervise.dead_after.
    const bool in_doubt = attempt_->failure() && attempt_->failure()->kind == base::ErrorKind::comm &&
                          !lost_node_ && membership_.in_doubt();
    if (attempt_->failure() && *left <= 0 && !in_doubt) return;
    // A process that does not exit causes no event, so the wait needs a limit.
    const auto most = in_doubt ? std::optional(kDeathSeconds) : left;
    wait_for_events(done_at_ ? std::min(most.value_or(kLastWordsSeconds), kLastWordsSeconds) : most);
  }
}

/// Handles events for at most `seconds`; without a value waits for the next event.
void Run::wait_for_events(std::optional<double> seconds) {
  if (!surviving_.deferred.empty()) {
    for (Membership::Event& event : std::exchange(surviving_.deferred, {})) on_node_event(std::move(event));
    return;
  }
  std::vector<pollfd> fds{pollfd{options_.signal_fd, POLLIN, 0}, pollfd{writer_.event_fd(), POLLIN, 0}};
  fds.push_back({partner_ ? partner_->event_fd() : -1, POLLIN, 0});
  fds.push_back({copier_ ? copier_->event_fd() : -1, POLLIN, 0});
  const std::size_t attempt = fds.size();
  attempt_->watch(fds);
  const std::size_t nodes = fds.size();
  membership_.watch(fds);
  if (const auto due = membership_.due_seconds()) seconds = std::min(seconds.value_or(*due), *due);
  const int timeout = seconds ? static_cast<int>(std::clamp(1000 * *seconds, 0.0, 1e9)) + 1 : -1;
  if (::poll(fds.data(), fds.size(), timeout) < 0) return;
  membership_.works();
  if (fds[0].revents != 0) on_signal();
  check_time_limit();
  if (killed_) return;
  attempt_->take(std::span(fds).subspan(attempt, nodes - attempt));
  if (fds[1].revents != 0) on_saved();
  if (fds[2].revents != 0) on_partner();
  if (fds[3].revents != 0) on_durable();
  for (Membership::Event& event : membership_.take(std::span(fds).subspan(nodes)))
    on_node_event(std::move(event));
}

// ---- the end

/// Throws the error by which the leader has ended the run, if there is one.
void Run::throw_received_failure() {
  if (!membership_.end()->failed) return;
  if (membership_.end()->excludes && may_join_again())
    throw Excluded(membership_.end()->message, membership_.node(), false);
  drain_quietly();
  base::throw_error(membership_.end()->kind, membership_.end()->message);
}

void Run::throw_failure() {
  Failure failure = *attempt_->failure();
  if (!leaderless_.empty() && !membership_.leads()) membership_.lose_leader(leaderless_);
  if (!surviving_.excluded.empty()) throw Excluded(surviving_.excluded, membership_.node(), false);
  distrust_checkpoints_after(trusted_step());
  const std::string message = with_last_checkpoint(failure);
  // ErrorKind::device keeps schedulers from starting the job again. A failure that may depend on the hosts is
  // only counted so after kMaxInAllRuns.
  if (failed_.ends() && (!failure.retry || failed_.times >= CountedFailure::kMaxInAllRuns))
    failure.kind = base::ErrorKind::device;
  // The other nodes first, since this disk may be slow. Held snapshots may still become checkpoints.
  membership_.finish({.failed = true, .kind = failure.kind, .message = message});
  drain_quietly();
  if (compared_.equal_until) withdraw_checkpoints(*compared_.equal_until, true);
  else distrust_checkpoints_after(trusted_step());
  base::throw_error(failure.kind, message);
}

std::string Run::with_last_checkpoint(const Failure& failure) const {
  if (failure.kind == base::ErrorKind::diverged)
    return failure.message + "; the last good checkpoint is " + last_good_;
  if (failure.kind != base::ErrorKind::comm && !failure.retry) return failure.message;
  std::string text = failure.message + "; the last checkpoint is " + last_good_;
  const std::string counted = failed_.earlier == 0
                                  ? ""
                                  : "; " + std::to_string(failed_.earlier) +
                                        " of these failures were in earlier runs of the job, as " +
                                        output_.failures() + " says: remove this file when the cause is gone";
  if (failed_.ends() && failure.retry && failure.kind == base::ErrorKind::comm)
    return text + "; " + failed_.again() +
           "it is the network, or cluster.timeout is shorter than the step's longest communication" + counted;
  if (failed_.ends()) return text + "; " + failed_.reason() + counted;
  if (failure.restarts() && restarted_ > 0)
    text += "; the workers were started again " + std::to_string(restarts_.taken()) +
            (restarts_.taken() == 1 ? " time" : " times") +
            " within 10 minutes (restarts: " + std::to_string(job_.restarts) + ")";
  text += "; run the job again to go on from there";
  if (const std::string evidence = failed_.evidence(); !evidence.empty()) text += "\n  " + evidence;
  for (const std::string& line : flight_lines()) text += "\n  " + line;
  return text;
}

/// Writes what can still be written after an error. The first error stays the one that is reported.
void Run::end_failed(const std::string& error) {
  attempt_->kill_workers();
  drain_quietly();
  if (!killed_) record_failure(error);
  // If the run never began, the previous run's report must stay.
  if (!sinks_started_ || killed_) return;
  try {
    finish(error.substr(0, error.find('\n')));
  } catch (const std::exception& second) {
    log::error("at the end of the run: {}", second.what());
  }
}

/// Waits until every complete snapshot is on the disk. Throws the error of a failed write.
void Run::drain_writer() {
  if (resizes_ || !membership_.alone()) cancel_dropped();
  while (writer_.pending() > 0 && !killed_) {
    std::array<pollfd, 2> fds{pollfd{options_.signal_fd, POLLIN, 0}, pollfd{writer_.event_fd(), POLLIN, 0}};
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[0].revents != 0) on_signal();
    if (fds[1].revents != 0) on_saved();
  }
}

/// The same while another error is handled: an error here is only logged.
void Run::drain_quietly() {
  // Without a leader no checkpoint of several nodes becomes complete.
  if (!membership_.leads() || !leaderless_.empty()) return writer_.abandon();
  writer_.end_within(kLastSavesSeconds);
  while (writer_.pending() > 0 && !killed_) {
    try {
      drain_writer();
    } catch (const std::exception& error) {  // that job has ended; the loop goes on with the next one
      log::error("while the last checkpoint was written: {}", error.what());
    }
  }
}

}  // namespace trainerd::core::run
