#include "core/run/agent/agent.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <exception>
#include <span>

#include "core/plan/cost/units.h"
#include "core/plan/predict/plan.h"
#include "core/rank/device_rank.h"
#include "core/rank/dry_run.h"
#include "core/run/agent/agent_state.h"
#include "core/run/log/log.h"
#include "core/run/stop/early_stop.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "core/version/version.h"
#include "io/text/text.h"

namespace trainerd::core {
namespace {

// How long the other ranks have, after the first failure, to say what they know of it.
constexpr double kLastWordsSeconds = 1.0;

// How long a node waits, after that, for the leader's word on what it was.
constexpr double kVerdictSeconds = 5.0;

// How long a failed run tries to write the snapshots that are whole.
constexpr double kEndSeconds = 20.0;

// A shared file system may show another node's file late: NFS remembers what is not there.
constexpr double kSharedSeconds = 30.0;

}  // namespace

Agent::Agent(const AgentOptions& options, Membership& membership)
    : options_(options),
      job_(options.job),
      membership_(membership),
      output_(membership.leads()
                  ? OutputDirectory(job_.output, options.fresh ? OutputDirectory::Earlier::moved_aside
                                                               : OutputDirectory::Earlier::kept)
                  : OutputDirectory::marked(job_.output, membership.go().run,
                                            std::min(kSharedSeconds, membership.timeout_seconds()))),
      topology_(job_topology(job_)),
      layout_(layout_of(job_, topology_)),
      here_(node_ranks(layout_, topology_, membership.node())),
      plans_(plan_ranks(job_, layout_, topology_, here_, membership.leads())),
      store_(output_.checkpoints(), options.job.checkpoint.keep, membership.go().run),
      writer_(store_, {.give_up_seconds = job_.checkpoint.give_up_seconds}),
      parts_(layout_.grid.ranks()),
      traces_(output_.traces(), here_.count,
              membership.alone() ? "" : "-node-" + std::to_string(membership.node())),
      stop_(membership.stop()) {
  announce();
  if (membership.leads()) plan();
}

/// What the run is held against, once it trains.
void Agent::plan() {
  Planned planned;
  for (std::int64_t rank = here_.first; rank < here_.first + here_.count; ++rank)
    planned.bytes[rank] = plans_.here[static_cast<std::size_t>(rank - here_.first)].memory.total_bytes();
  if (options_.rates) {
    const Plan plan = make_plan(job_, with_rates(topology_, *options_.rates));
    if (plan.timed) planned.step_seconds = plan.time.step_seconds, planned.time = plan.time.ranks.front();
  }
  if (planned.step_seconds) log::info("planned: {} per step", duration(*planned.step_seconds));
  planned_ = std::move(planned);
}

/// The leader's word to the other nodes.
void Agent::begin() {
  if (!membership_.leads() || membership_.alone()) return;
  output_.mark(membership_.go().run);
  membership_.begin({.last_good = last_good_,
                     .step = step_,
                     .cursor = start_.cursor,
                     .tokens = start_.tokens,
                     .order_start = start_.order_start,
                     .order_stream = start_.order_stream,
                     .evaluate_first = start_.evaluate_first});
}

void Agent::start_workers() {
  if (here_.count > 1) world_ = parallel::make_shm_segment(shared_memory_layout(job_, layout_, here_));
  start_.job_yaml = to_yaml(job_);
  if (job_.gemm_algorithms == GemmAlgorithms::timed && here_.first == 0)
    start_.gemm_algorithms = output_.gemm_algorithms();
  if (!membership_.alone()) {
    start_.rendezvous = membership_.store().text();
    start_.interface = membership_.interface();
  } else if (uses_nccl(job_) && here_.count > 1) {
    store_server_ = std::make_unique<parallel::StoreServer>(
        base::Endpoint{"127.0.0.1", 0}, [](const std::string& line) { log::warn("{}", line); });
    start_.rendezvous = base::Endpoint{"127.0.0.1", store_server_->port()}.text();
  }
  for (std::int64_t i = 0; i < here_.count; ++i) start_worker(here_.first + i);
  // Asked for while this node waited for the others.
  if (stop_)
    for (Worker& worker : workers_) send(worker, Stop{});
}

void Agent::start_worker(std::int64_t rank) {
  Worker& worker = workers_.emplace_back();
  worker.rank = rank;
  std::vector<int> fds;
  for (int i = 0; i < kSnapshots; ++i) {
    const std::string name = "trainerd-snapshot-" + std::to_string(rank) + "-" + std::to_string(i);
    worker.segments.push_back(std::make_shared<base::Segment>(base::Segment::create(
        name, plans_.here[static_cast<std::size_t>(rank - here_.first)].snapshot_bytes)));
    fds.push_back(worker.segments.back()->fd());
  }
  auto [ours, theirs] = Channel::make_pair();
  worker.channel.emplace(std::move(ours));
  worker.process.emplace(options_.executable, rank, std::move(theirs), fds, world_ ? world_->fd() : -1);
  Start start = start_;
  start.rank = rank;
  start.reports = rank == here_.first;
  worker.channel->send(encode(AgentMessage{start}));
}

AgentResult Agent::run() {
  if (already_trained()) {
    begin();
    return already_done();
  }
  open_sinks();
  if (membership_.leads()) {
    output_.write_job(job_);
    if (stopped_before_start()) return {step_, stop_->exit_signal};
  }
  begin();
  if (planned_) plan_check_.emplace(*std::move(planned_), step_, job_.steps);
  begin_time_limit();
  try {
    start_workers();
    supervise();
    drain_writer();
  } catch (const std::exception& error) {
    membership_.finish(end_by(error));
    end_failed(error.what());
    throw;
  }
  // At once: the report may be for a disk that is slow or gone.
  if (killed_) {
    record_begin();
    record(io::NoticeKind::stop, fmt::format("stopped at once by {} after step {}; the last checkpoint is {}",
                                             stop_->reason, step_, last_good_));
    return {step_, stop_->exit_signal};
  }
  if (!membership_.leads()) return {step_, membership_.end()->stop_signal};
  const bool stopped = finished_.at(0).stopped;
  const int signal = stopped ? stop_->exit_signal : 0;
  membership_.finish({.stop_signal = signal});
  if (stopped)
    record(io::NoticeKind::stop, fmt::format("stopped by {} after step {}; the last checkpoint is {}",
                                             stop_->reason, step_, last_good_));
  else
    record(io::NoticeKind::finish,
           fmt::format("all {} steps are done; the last checkpoint is {}", step_, last_good_));
  finish(stopped ? "stopped by " + stop_->reason : "done");
  return {step_, signal};
}

/// Leaves as much as possible behind an error, which stays the one that is reported.
void Agent::end_failed(const std::string& error) {
  kill_workers();
  drain_quietly();
  if (!killed_) record_failure(error);
  // A run that never began leaves the report of the one before it alone.
  if (!all_ready() || killed_) return;
  try {
    finish(error.substr(0, error.find('\n')));
  } catch (const std::exception& second) {
    log::error("at the end of the run: {}", second.what());
  }
}

bool Agent::workers_left() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.channel_open || worker.alive; });
}

/// Of several nodes, the leader ends when all ranks have and every checkpoint is complete, the others when it
/// says so.
bool Agent::working() const {
  if (membership_.alone()) return workers_left();
  if (!membership_.leads()) return !membership_.over();
  return workers_left() || std::cmp_less(finished_.size(), layout_.grid.ranks()) || !parts_.none() ||
         writer_.pending() > 0;
}

void Agent::kill_workers() {
  for (Worker& worker : workers_)
    if (worker.process) worker.process->kill();
}

void Agent::supervise() {
  while (working()) {
    std::vector<pollfd> fds{pollfd{options_.signal_fd, POLLIN, 0}, pollfd{writer_.event_fd(), POLLIN, 0}};
    for (const Worker& worker : workers_) {
      fds.push_back({worker.channel_open ? worker.channel->fd() : -1, POLLIN, 0});
      fds.push_back({worker.alive ? worker.process->pidfd() : -1, POLLIN, 0});
    }
    const std::size_t devices = fds.size();
    fds.push_back({devices_ ? devices_->event_fd() : -1, POLLIN, 0});
    const std::size_t membership = fds.size();
    membership_.watch(fds);
    const double patience = kLastWordsSeconds + (membership_.leads() ? 0 : kVerdictSeconds);
    const auto left =
        failure_ ? std::optional(failed_at_ + patience - base::monotonic_seconds()) : time_left();
    if (failure_ && *left <= 0) break;
    if (::poll(fds.data(), fds.size(), left ? static_cast<int>(std::min(1000 * *left, 1e9)) + 1 : -1) < 0)
      continue;
    if (fds[0].revents != 0) on_signal();
    check_time_limit();
    if (killed_) return;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      // Messages before the end: what the worker said last is still in the socket.
      if (fds[2 + 2 * i].revents != 0) on_message(workers_[i]);
      else if (fds[3 + 2 * i].revents != 0) on_worker_end(workers_[i]);
    }
    if (fds[1].revents != 0) on_saved();
    if (fds[devices].revents != 0) on_devices();
    for (const Membership::Event& event : membership_.take(std::span(fds).subspan(membership)))
      on_node_event(event);
    if (killed_) return;
  }
  kill_workers();
  const bool told = !membership_.leads() && membership_.over();
  if (told && membership_.end()->failed) {
    drain_quietly();
    base::throw_error(membership_.end()->kind, membership_.end()->message);
  }
  if (told || !failure_) return;
  // The others first: this disk may be slow. What it still holds may become a checkpoint.
  membership_.finish({.failed = true, .kind = failure_->kind, .message = with_last_checkpoint(*failure_)});
  drain_quietly();
  base::throw_error(failure_->kind, with_last_checkpoint(*failure_));
}

std::string Agent::with_last_checkpoint(const Failure& failure) const {
  if (failure.kind == base::ErrorKind::diverged)
    return failure.message + "; the last good checkpoint is " + last_good_;
  if (failure.kind != base::ErrorKind::comm) return failure.message;
  return failure.message + "; the last checkpoint is " + last_good_ +
         "; run the job again to go on from there";
}

/// Remembers what went wrong, ends the ranks' waiting for each other, and lets them say what they know: the
/// one that is the cause may be heard after those that only missed it.
void Agent::fail(Failure failure) {
  if (!failure_) {
    failed_at_ = base::monotonic_seconds();
    if (world_) parallel::abort_shm(*world_, failure.message);
  }
  if (!membership_.leads()) membership_.send(NodeFailed{failure.kind, failure.message, failure.weight});
  if (!failure_ || failure.weight > failure_->weight) failure_ = std::move(failure);
}

void Agent::send(Worker& worker, const AgentMessage& message) {
  if (!worker.channel_open) return;
  try {
    worker.channel->send(encode(message));
  } catch (const base::CommError&) {
    // The worker has ended; its end is handled where it is seen.
  }
}

void Agent::on_worker_end(Worker& worker) {
  worker.alive = false;
  const std::string how = worker.process->wait();
  if ((finished_.contains(worker.rank) && how.empty()) || (failure_ && how == "exit status 1")) return;
  fail({base::ErrorKind::comm,
        "rank " + std::to_string(worker.rank) + " (pid " + std::to_string(worker.process->pid()) +
            ") ended by " + (how.empty() ? "itself before it was done" : how) + " after step " +
            std::to_string(step_),
        1});
}

/// Lets every snapshot that is whole reach the disk. An error while one is written is thrown here at the
/// latest.
void Agent::drain_writer() {
  while (writer_.pending() > 0 && !killed_) {
    std::array<pollfd, 2> fds{pollfd{options_.signal_fd, POLLIN, 0}, pollfd{writer_.event_fd(), POLLIN, 0}};
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[0].revents != 0) on_signal();
    if (fds[1].revents != 0) on_saved();
  }
}

/// The same where another error is on its way: what goes wrong here is told and does not take its place.
void Agent::drain_quietly() {
  // Without the leader no checkpoint of several nodes becomes complete.
  if (!membership_.leads()) return writer_.abandon();
  writer_.end_within(kEndSeconds);
  while (writer_.pending() > 0 && !killed_) {
    try {
      drain_writer();
    } catch (const std::exception& error) {  // its job is done with: the next one is another's
      log::error("while the last checkpoint was written: {}", error.what());
    }
  }
}

AgentResult run_agent(const AgentOptions& options) {
  std::optional<Membership> membership;
  if (options.membership) membership.emplace(*options.membership, options.job, options.signal_fd);
  else membership.emplace();
  if (membership->over()) return {0, membership->end()->stop_signal};
  try {
    AgentOptions here = options;
    // Of the job that workers get: where a node has less, it limits the others.
    if (!membership->alone() && options.job.device != DeviceChoice::cuda &&
        membership->isa() < kernels::detect_cpu(1, most_isa(options.job)).isa)
      here.job.isa = choice_of(membership->isa());
    // The other nodes leave when this one says so; a signal to one of them is passed on when it has planned.
    std::optional<EarlyStop> early;
    if (membership->leads())
      early.emplace(options.signal_fd, [&](const StopRequest& stop) {
        membership->finish({.stop_signal = stop.exit_signal});
        options.leave(stop);
      });
    Agent agent(here, *membership);
    agent.prepare();
    early.reset();
    const AgentResult result = agent.run();
    membership->finish({.stop_signal = result.stop_signal});
    return result;
  } catch (const std::exception& error) {
    membership->finish(end_by(error));
    options.log->add("error", error.what());
    options.log->finish();
    throw;
  }
}

}  // namespace trainerd::core
