#include "core/run/agent/attempt.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "core/run/agent/flight_text.h"
#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "core/run/worker/flight_segment.h"
#include "core/run/worker/worker_environment.h"
#include "core/spec/spec.h"
#include "core/train/rank_groups.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/process_memory.h"
#include "parallel/comm/shm/shm_world.h"

namespace trainerd::core::run {
namespace {

// Time for workers to exit after their last message: if they are stopped by a signal, and if not. Freeing a
// lot of memory takes a while.
constexpr double kStoppedSeconds = 1;
constexpr double kEndSeconds = 30;

}  // namespace

Attempt::Attempt(Run& run, PlannedWorld plan, std::int64_t number)
    : run_(run),
      plan_(std::move(plan)),
      number_(number),
      traces_(run.output().traces(), plan_.here.count,
              run.membership().alone() ? "" : "-node-" + std::to_string(run.membership().node())),
      ready_(plan_.here, run.membership()) {}

void Attempt::begin(Start start, const HeldStep* held, const std::optional<Gathered>& gathered) {
  begun_ = true;
  memory_kills_ = base::out_of_memory_kills();
  const job::JobSpec& job = run_.job();
  const NodeRanks& here = plan_.here;
  if (here.count > 1) world_ = parallel::make_shm_segment(shared_memory_layout(job, plan_.layout, here));
  flights_ = make_flight_segment(here.count);
  if (job.supervise.hang_factor > 0)
    rank_watch_.emplace(*flights_, here, run_.membership().node(), run_.ranks().usual());
  start.layout = plan_.layout;
  start.node_first = here.first;
  start.node_count = here.count;
  start.attempt = number_;
  if (!run_.membership().alone()) {
    start.rendezvous = run_.membership().store().text();
    start.interface = run_.membership().interface();
    start.token = run_.membership().token().text();
  } else if (job::uses_nccl(job) && here.count > 1) {
    const auto token = parallel::JobToken::random();
    store_server_ = std::make_unique<parallel::StoreServer>(
        base::listen_at({"127.0.0.1", 0}), token, [](const std::string& line) { log::warn("{}", line); });
    start.rendezvous = store_server_->local_endpoint().text();
    start.token = token.text();
  }
  announce_ranks();
  start.gathered = gathered.has_value();
  if (gathered) start.held = gathered->shards;
  else if (held != nullptr) start.held = run_.snapshots().shards(*held);
  for (std::int64_t i = 0; i < here.count; ++i) start_worker(start, here.first + i, held, gathered);
  // Asked for while this node waited for the others.
  if (run_.stopping()) send_all(Stop{});
  if (run_.devices().draining()) send_all(Drain{});
}

/// Records the ranks' first states, before they start.
void Attempt::announce_ranks() {
  set_rank_states(io::RankState::starting);
  for (std::int64_t i = 0; i < plan_.here.count; ++i) report_memory(plan_.here.first + i, std::nullopt);
}

/// Sets the state of all ranks that this agent knows of; the leader knows those of all nodes.
void Attempt::set_rank_states(io::RankState state) {
  set_rank_state(run_.membership().node(), plan_.here.first, plan_.here.count, state);
  if (run_.membership().leads())
    for (std::int64_t node = 1; node < run_.membership().nodes(); ++node) set_node_state(node, state);
}

void Attempt::set_rank_state(std::int64_t node, std::int64_t first, std::int64_t count, io::RankState state) {
  run_.sinks().each(&io::MetricsSink::on_rank_state,
                    io::RankStateRecord{.first = first, .count = count, .node = node, .state = state});
}

/// Sets the state of all ranks of another node.
void Attempt::set_node_state(std::int64_t node, io::RankState state) {
  const NodeRanks ranks = node_ranks(plan_.layout, run_.topology(), node);
  set_rank_state(node, ranks.first, ranks.count, state);
}

void Attempt::report_memory(std::int64_t rank, std::optional<std::int64_t> used_bytes) {
  const rank::DryRun& planned = plan_.ranks.here.at(static_cast<std::size_t>(rank - plan_.here.first));
  run_.sinks().each(
      &io::MetricsSink::on_rank_memory,
      io::RankMemoryRecord{
          .rank = rank, .planned_bytes = planned.memory.total_bytes(), .used_bytes = used_bytes});
}

void Attempt::start_worker(const Start& start, std::int64_t rank, const HeldStep* held,
                           const std::optional<Gathered>& gathered) {
  const NodeSnapshots& snapshots = run_.snapshots();
  Worker& worker = workers_.emplace_back();
  worker.rank = rank;
  WorkerProcess::Memory memory{.segments = {},
                               .world = world_ ? world_->fd() : -1,
                               .flights = flights_ ? flights_->fd() : -1,
                               .held = {}};
  for (const std::shared_ptr<base::Segment>& segment : snapshots.segments(rank))
    memory.segments.push_back(segment->fd());
  // What one rank saves for others is theirs to load too.
  if (gathered)
    for (const auto& memory_of_shard : gathered->memory) memory.held.push_back(memory_of_shard->fd());
  for (std::int64_t i = 0; !gathered && held != nullptr && i < plan_.here.count; ++i)
    memory.held.push_back(
        snapshots.segment(plan_.here.first + i, held->segments.at(static_cast<std::size_t>(i)))->fd());
  auto [ours, theirs] = Channel::make_pair();
  worker.channel.emplace(std::move(ours));
  worker.channel_open = true;
  worker.process.emplace(run_.options().executable, rank, std::move(theirs), memory,
                         worker_variables(run_.job(), run_.membership().given_interface()));
  worker.alive = true;
  Start own = start;
  own.rank = rank;
  const auto place = static_cast<std::size_t>(rank - plan_.here.first);
  if (held != nullptr) own.newest_segment = held->segments.at(place);
  own.busy_segments = run_.busy_segments(place);
  own.reports = rank == plan_.here.first;
  send(worker, own);
}

void Attempt::watch(std::vector<pollfd>& fds) const {
  for (const Worker& worker : workers_) {
    fds.push_back({worker.channel_open ? worker.channel->fd() : -1, POLLIN, 0});
    fds.push_back({worker.alive ? worker.process->pidfd() : -1, POLLIN, 0});
  }
  fds.push_back({devices_ ? devices_->event_fd() : -1, POLLIN, 0});
  fds.push_back({rank_watch_ ? rank_watch_->event_fd() : -1, POLLIN, 0});
}

void Attempt::take(std::span<const pollfd> fds) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    // Messages before the exit: the worker's last messages are still in the socket.
    if (fds[2 * i].revents != 0) on_message(workers_[i]);
    else if (fds[2 * i + 1].revents != 0) on_worker_end(workers_[i]);
  }
  if (fds[2 * workers_.size()].revents != 0) on_devices();
  if (fds[2 * workers_.size() + 1].revents != 0) look_at_ranks();
}

void Attempt::look_at_ranks() {
  std::vector<pid_t> pids;
  for (const Worker& worker : workers_) pids.push_back(worker.alive ? worker.process->pid() : 0);
  rank_watch_->look(pids);
  run_.ranks().on_look(*this);
}

void Attempt::send(Worker& worker, const AgentMessage& message) {
  if (!worker.channel_open) return;
  try {
    worker.channel->send(encode(message));
  } catch (const base::CommError&) {
    // The worker has ended, which on_worker_end handles.
  }
}

void Attempt::send_saved(const std::vector<std::int64_t>& segments) {
  for (std::size_t i = 0; i < workers_.size(); ++i)
    send(workers_[i], SnapshotSaved{static_cast<int>(segments.at(i))});
}

void Attempt::send_delayed(const std::vector<std::int64_t>& segments) {
  for (std::size_t i = 0; i < workers_.size(); ++i)
    send(workers_[i], SnapshotDelayed{static_cast<int>(segments.at(i))});
}

void Attempt::send_all(const AgentMessage& message) {
  for (Worker& worker : workers_) send(worker, message);
}

bool Attempt::workers_left() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.channel_open || worker.alive; });
}

bool Attempt::workers_stay(double seconds) const {
  if (seconds < kStoppedSeconds) return false;
  return seconds >= kEndSeconds || std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
           return !worker.alive || process_state(worker.process->pid()) == 'T';
         });
}

bool Attempt::all_finished_here() const { return std::cmp_equal(finished_.size(), plan_.here.count); }

bool Attempt::all_finished() const {
  return all_finished_here() && std::cmp_equal(finished_nodes_.size(), run_.membership().nodes() - 1);
}

bool Attempt::stopped() const {
  const auto first = finished_.find(0);
  return first != finished_.end() && first->second.stopped;
}

// ---- the end

void Attempt::fail(Failure failure) {
  if (!failure_) {
    failed_at_ = base::monotonic_seconds();
    // Read when the failure is seen, because the ranks now leave their operations.
    if (failure.kind == base::ErrorKind::comm && plan_.layout.grid.ranks() > 1 && flights_) {
      std::vector<RankFlights> ranks = read_flights(*flights_, plan_.here);
      for (std::size_t i = 0; i < workers_.size(); ++i)
        if (workers_[i].alive) ranks[i].process_state = process_state(workers_[i].process->pid());
        else ranks[i].process_state = 'X';
      flights_text_ = flight_text(ranks, plan_.layout, train::group_needs(run_.job().model), failed_at_);
    }
    if (world_) parallel::abort_shm(*world_, failure.message);
  }
  if (!run_.membership().leads())
    run_.membership().send(NodeFailed{failure.kind, failure.message, failure.weight, failure.death,
                                      failure.cause, failure.retry});
  if (!failure_ || failure.weight > failure_->weight) failure_ = std::move(failure);
}

void Attempt::on_worker_end(Worker& worker) {
  worker.alive = false;
  const WorkerProcess::End end = worker.process->wait();
  const bool finished = finished_.contains(worker.rank);
  if (!finished) set_rank_state(run_.membership().node(), worker.rank, 1, io::RankState::dead);
  if ((finished && end.how.empty()) || (failure_ && end.how == "exit status 1")) return;
  const std::string rank = "rank " + std::to_string(worker.rank);
  const bool memory = end.signal == SIGKILL && base::out_of_memory_kills() > memory_kills_;
  fail({base::ErrorKind::comm,
        rank + " (pid " + std::to_string(worker.process->pid()) + ") ended by " +
            (end.how.empty() ? "itself before it was done" : end.how) +
            (memory ? ", as the kernel killed processes for want of memory," : "") + " after step " +
            std::to_string(run_.step()),
        1, end.signal != 0,
        FailureCause{.what = end.signal != 0 ? rank + " by " + end.how : "", .own = is_crash(end.signal)}});
}

void Attempt::kill_workers() {
  for (Worker& worker : workers_)
    if (worker.process) worker.process->kill();
}

void Attempt::end_workers() {
  kill_workers();
  for (Worker& worker : workers_) {
    if (std::exchange(worker.alive, false) && worker.process) worker.process->wait();
    while (worker.channel && worker.channel_open) on_message(worker);
  }
}

}  // namespace trainerd::core::run
