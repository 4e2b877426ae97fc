#include "core/supervise/agent.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>

#include "core/plan/dry_run.h"
#include "core/spec/machines.h"
#include "core/supervise/channel.h"
#include "core/supervise/checkpoint_writer.h"
#include "core/supervise/messages.h"
#include "core/supervise/output_directory.h"
#include "core/supervise/rank_world.h"
#include "core/supervise/worker_process.h"
#include "core/train/cpu_rank.h"
#include "core/train/snapshot.h"
#include "core/version.h"
#include "io/metrics/sinks.h"
#include "kernels/base/clock.h"
#include "kernels/base/segment.h"

namespace trainerd::core {
namespace {

// One is filled while the other is written.
constexpr int kSnapshots = 2;

/// Every sink of a run, as one.
class Sinks {
 public:
  void add(std::unique_ptr<io::MetricsSink> sink) { sinks_.push_back(std::move(sink)); }
  template <class Record>
  void each(void (io::MetricsSink::*method)(const Record&), const Record& record) {
    for (const auto& sink : sinks_) (*sink.*method)(record);
  }
  /// Every sink hears of the end, whatever becomes of another. Throws the first error when all have heard.
  void finish(const io::RunSummary& summary) {
    std::exception_ptr first;
    for (const auto& sink : sinks_) {
      try {
        sink->on_finish(summary);
      } catch (const std::exception& error) {
        if (first) spdlog::error("at the end of the run: {}", error.what());
        if (!first) first = std::current_exception();
      }
    }
    if (first) std::rethrow_exception(first);
  }

 private:
  std::vector<std::unique_ptr<io::MetricsSink>> sinks_;
};

/// One rank as the agent sees it.
struct Worker {
  std::int64_t rank = 0;
  std::vector<std::shared_ptr<base::Segment>> segments;
  std::optional<Channel> channel;
  std::optional<WorkerProcess> process;
  bool channel_open = true, alive = true;
  std::optional<Ready> ready;
  std::optional<Finished> finished;
  std::deque<SnapshotReady> snapshots;  ///< of steps that other ranks have not saved yet
};

/// What ended a run: the first error, unless a later one tells more of the cause.
struct Failure {
  base::ErrorKind kind = base::ErrorKind::comm;
  std::string message;
  int weight = 0;
};

class Agent {
 public:
  explicit Agent(const AgentOptions& options);
  AgentResult run();

 private:
  void resume();
  AgentResult already_done();
  std::unique_ptr<io::ReportSink> report_sink() const;
  void open_sinks();
  bool stopped_before_start();
  void start_workers();
  void start_worker(std::int64_t rank);
  void supervise();
  int read_signal() const;
  void on_signal();
  void on_message(Worker& worker);
  void on_saved();
  void on_worker_end(Worker& worker);
  void handle(Worker& worker, const Ready& m);
  void handle(Worker& worker, const io::StepRecord& m);
  void handle(Worker&, const io::EvaluationRecord& m) { sinks_.each(&io::MetricsSink::on_evaluation, m); }
  void handle(Worker& worker, const SnapshotReady& m);
  void handle(Worker& worker, const Failed& m);
  void handle(Worker& worker, const Finished& m) { worker.finished = m; }
  void on_all_ready();
  void save_complete_steps();
  void fail(Failure failure);
  void tell(Worker& worker, const AgentMessage& message);
  void kill_workers();
  bool working() const;
  bool all_ready() const;
  void drain_writer();
  void drain_quietly();
  void end_failed(const std::string& error);
  void finish(const std::string& outcome);
  io::RunInfo run_info() const;

  const AgentOptions& options_;
  const JobSpec& job_;
  double begin_ = base::monotonic_seconds();
  OutputDirectory output_;
  parallel::Layout layout_;
  std::vector<DryRun> plans_;  ///< by rank
  io::CheckpointStore store_;
  std::optional<base::Segment> world_;  ///< the memory that the ranks share; none for a rank alone
  CheckpointWriter writer_;
  Sinks sinks_;
  Start start_;
  std::optional<io::TrainingState> resumed_;
  std::deque<Worker> workers_;  ///< by rank; they stay where they are
  std::optional<Failure> failure_;
  double failed_at_ = 0;
  std::int64_t step_ = 0;
  std::string last_good_ = "none";  ///< the checkpoint that was verified or written by this run last
  int stop_signal_ = 0;
  bool killed_ = false;  ///< by a second signal: nothing is waited for
};

const char* name_of(int signal) { return signal == SIGTERM ? "SIGTERM" : "SIGINT"; }

// How long the other ranks have, after the first failure, to say what they know of it.
constexpr double kLastWordsSeconds = 1.0;

std::vector<DryRun> checked_plans(const JobSpec& job, const parallel::Layout& layout) {
  const auto too_large = [] {
    return base::capacity_error(
        "the job does not fit: planning it takes more memory than this host has; make the model, the "
        "batch or model.seq_len smaller");
  };
  try {
    const parallel::Topology topology = job_topology(job);
    std::vector<DryRun> plans;
    for (std::int64_t rank = 0; rank < layout.grid.ranks(); ++rank)
      plans.push_back(dry_run(job, layout, rank, topology.device));
    require_fits(plans, job, topology, kSnapshots);
    return plans;
  } catch (const std::bad_alloc&) {
    throw too_large();
  } catch (const std::length_error&) {
    throw too_large();
  }
}

Agent::Agent(const AgentOptions& options)
    : options_(options),
      job_(options.job),
      output_(options.job.output),
      layout_(layout_of(job_, job_topology(job_))),
      plans_(checked_plans(job_, layout_)),
      store_(output_.checkpoints(), options.job.checkpoint.keep),
      writer_(store_) {}

void Agent::resume() {
  const auto rejected = [](const std::string& path, const std::string& why) {
    spdlog::warn("checkpoint {} is damaged and will not be used: {}", path, why);
  };
  auto found = store_.newest_valid(rejected);
  if (!found) return;
  const io::TrainingState& state = found->manifest.state;
  require_same_identity(found->where.path, state.identity, job_);
  start_.resume_path = last_good_ = found->where.path;
  start_.step = step_ = state.step;
  start_.cursor = state.cursor;
  start_.tokens = state.tokens;
  spdlog::info("resuming from {} (step {})", found->where.path, state.step);
  resumed_ = std::move(found->manifest.state);
}

/// A run that was killed after its last checkpoint and before its report gets the report now.
AgentResult Agent::already_done() {
  spdlog::info("all {} steps are done already: {}", job_.steps, start_.resume_path);
  if (!output_.report_is_current()) {
    io::RunInfo info = run_info();
    info.device = resumed_->environment["processor"];
    info.threads = std::atoi(resumed_->environment["threads"].c_str());
    const auto report = report_sink();
    report->on_start(info);
    report->on_finish({step_, 0, "done"});
    spdlog::info("the report was written from the logs: {}", output_.report());
  }
  return {step_, 0};
}

std::unique_ptr<io::ReportSink> Agent::report_sink() const {
  return std::make_unique<io::ReportSink>(output_.report(), output_.steps(), output_.events(), to_yaml(job_));
}

void Agent::open_sinks() {
  auto prometheus = std::make_unique<io::PrometheusSink>(job_.metrics);
  spdlog::info("metrics at http://{}/metrics", prometheus->address());
  sinks_.add(std::move(prometheus));
  sinks_.add(std::make_unique<io::JsonlSink>(output_.steps(), step_));
  sinks_.add(std::make_unique<io::EventLogSink>(output_.events(), step_));
  sinks_.add(report_sink());
  sinks_.add(std::make_unique<io::ConsoleSink>(
      STDOUT_FILENO, options_.terminal ? io::ConsoleSink::Style::terminal : io::ConsoleSink::Style::plain));
}

void Agent::start_workers() {
  if (plans_.size() > 1) world_ = parallel::make_shm_segment(shared_memory_layout(job_, layout_));
  start_.job_yaml = to_yaml(job_);
  for (std::size_t rank = 0; rank < plans_.size(); ++rank) start_worker(static_cast<std::int64_t>(rank));
}

void Agent::start_worker(std::int64_t rank) {
  Worker& worker = workers_.emplace_back();
  worker.rank = rank;
  std::vector<int> fds;
  for (int i = 0; i < kSnapshots; ++i) {
    const std::string name = "trainerd-snapshot-" + std::to_string(rank) + "-" + std::to_string(i);
    worker.segments.push_back(std::make_shared<base::Segment>(
        base::Segment::create(name, plans_[static_cast<std::size_t>(rank)].snapshot_bytes)));
    fds.push_back(worker.segments.back()->fd());
  }
  auto [ours, theirs] = Channel::make_pair();
  worker.channel.emplace(std::move(ours));
  worker.process.emplace(options_.executable, std::move(theirs), fds, world_ ? world_->fd() : -1);
  Start start = start_;
  start.rank = rank;
  worker.channel->send(encode(AgentMessage{start}));
}

AgentResult Agent::run() {
  resume();
  if (step_ >= job_.steps) return already_done();
  open_sinks();
  output_.write_job(job_);
  if (stopped_before_start()) return {step_, stop_signal_};
  try {
    start_workers();
    supervise();
    drain_writer();
  } catch (const std::exception& error) {
    end_failed(error.what());
    throw;
  }
  // At once: the report may be for a disk that is slow or gone.
  if (killed_) return {step_, stop_signal_};
  const bool stopped = workers_[0].finished->stopped;
  finish(stopped ? std::string("stopped by ") + name_of(stop_signal_) : "done");
  return {step_, stopped ? stop_signal_ : 0};
}

/// Planning and verifying a checkpoint take a while; a stop that came meanwhile is not answered with a step.
bool Agent::stopped_before_start() {
  pollfd p{options_.signal_fd, POLLIN, 0};
  if (::poll(&p, 1, 0) <= 0 || (stop_signal_ = read_signal()) == 0) return false;
  spdlog::info("{} before training began: stopping", name_of(stop_signal_));
  return true;
}

/// Leaves as much as possible behind an error, which stays the one that is reported.
void Agent::end_failed(const std::string& error) {
  kill_workers();
  drain_quietly();
  // A run that never began leaves the report of the one before it alone.
  if (!all_ready() || killed_) return;
  try {
    finish(error.substr(0, error.find('\n')));
  } catch (const std::exception& second) {
    spdlog::error("at the end of the run: {}", second.what());
  }
}

bool Agent::working() const {
  for (const Worker& worker : workers_)
    if (worker.channel_open || worker.alive) return true;
  return false;
}

bool Agent::all_ready() const {
  for (const Worker& worker : workers_)
    if (!worker.ready) return false;
  return !workers_.empty();
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
    const double left = failure_ ? failed_at_ + kLastWordsSeconds - base::monotonic_seconds() : 0;
    if (failure_ && left <= 0) break;
    if (::poll(fds.data(), fds.size(), failure_ ? static_cast<int>(1000 * left) + 1 : -1) < 0) continue;
    if (fds[0].revents != 0) on_signal();
    if (killed_) return;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      // Messages before the end: what the worker said last is still in the socket.
      if (fds[2 + 2 * i].revents != 0)
        on_message(workers_[i]);
      else if (fds[3 + 2 * i].revents != 0)
        on_worker_end(workers_[i]);
    }
    if (fds[1].revents != 0) on_saved();
  }
  if (!failure_) return;
  kill_workers();
  drain_quietly();
  if (failure_->kind == base::ErrorKind::diverged) failure_->message += "; the last good checkpoint is " + last_good_;
  base::throw_error(failure_->kind, failure_->message);
}

/// Remembers what went wrong, ends the ranks' waiting for each other, and lets them say what they know: the one that is the
/// cause may be heard after those that only missed it.
void Agent::fail(Failure failure) {
  if (!failure_) {
    failed_at_ = base::monotonic_seconds();
    if (world_) parallel::abort_shm(*world_, failure.message);
  }
  if (!failure_ || failure.weight > failure_->weight) failure_ = std::move(failure);
}

void Agent::tell(Worker& worker, const AgentMessage& message) {
  if (!worker.channel_open) return;
  try {
    worker.channel->send(encode(message));
  } catch (const base::CommError&) {
    // The worker has ended; its end is handled where it is seen.
  }
}

int Agent::read_signal() const {
  signalfd_siginfo info{};
  if (::read(options_.signal_fd, &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return 0;
  return static_cast<int>(info.ssi_signo);
}

void Agent::on_signal() {
  const int signal = read_signal();
  if (signal == 0) return;
  if (stop_signal_ != 0) {
    spdlog::warn("{} again: stopping at once; the last checkpoint is {}", name_of(signal), last_good_);
    killed_ = true;
    kill_workers();
    writer_.abandon();
    return;
  }
  stop_signal_ = signal;
  spdlog::info("{}: finishing the step, saving, stopping (a second one stops at once)", name_of(signal));
  for (Worker& worker : workers_) tell(worker, Stop{});
}

void Agent::on_message(Worker& worker) {
  const std::optional<std::string> text = worker.channel->receive();
  if (!text) {
    worker.channel_open = false;
    return;
  }
  std::visit([&](const auto& message) { handle(worker, message); }, decode_worker_message(*text));
}

io::RunInfo Agent::run_info() const {
  io::RunInfo info;
  info.name = job_.name;
  info.output = output_.path();
  info.parameters = count_parameters(job_.model).total;
  info.steps = job_.steps;
  info.start_step = step_;
  info.tokens_per_step = job_.tokens_per_step();
  info.flops_per_token = flops_per_token(job_.model);
  info.precision = job_.precision.name;
  std::map<std::string, std::int64_t> regions;  // of all ranks
  for (const DryRun& plan : plans_) {
    info.memory_planned_bytes += plan.memory.total_bytes();
    for (const auto& region : plan.memory.regions) regions[region.name] += region.bytes;
  }
  info.memory_regions.assign(regions.begin(), regions.end());
  info.version = version();
  return info;
}

void Agent::handle(Worker& worker, const Ready& m) {
  if (resumed_) require_same_data(start_.resume_path, *resumed_, m.data_fingerprint);
  worker.ready = m;
  if (all_ready()) on_all_ready();
}

void Agent::on_all_ready() {
  const Ready& first = *workers_[0].ready;
  for (const Worker& worker : workers_)
    if (worker.ready->data_fingerprint != first.data_fingerprint)
      throw base::data_error("rank " + std::to_string(worker.rank) + " sees other data than rank 0: a file changed while the run started");
  if (resumed_) {
    const std::string changed = environment_differences(resumed_->environment, first.environment);
    if (!changed.empty()) spdlog::warn("the continuation will not be bit for bit: {}", changed);
  }
  io::RunInfo info = run_info();
  info.device = first.device;
  for (const Worker& worker : workers_) info.threads += worker.ready->threads;
  if (first.peak_flops > 0) info.peak_flops = first.peak_flops * static_cast<double>(workers_.size());
  sinks_.each(&io::MetricsSink::on_start, info);
}

void Agent::handle(Worker&, const io::StepRecord& m) {
  base::check(all_ready(), "every worker is ready before the first step");
  step_ = m.step;
  sinks_.each(&io::MetricsSink::on_step, m);
}

void Agent::handle(Worker& worker, const SnapshotReady& m) {
  worker.snapshots.push_back(m);
  save_complete_steps();
}

/// A step is a checkpoint when every rank has saved it. Ranks fill their segments in the same turn.
void Agent::save_complete_steps() {
  for (;;) {
    CheckpointWriter::Job job;
    for (Worker& worker : workers_) {
      if (worker.snapshots.empty()) return;
      const SnapshotReady& m = worker.snapshots.front();
      base::check(worker.ready.has_value(), "a worker is ready before it saves");
      base::check(worker.rank == 0 || (m.step == job.state.step && m.segment == job.segment), "ranks save the same steps in turn");
      if (worker.rank == 0) {
        job.segment = m.segment;
        job.state = {m.step, m.cursor, m.tokens, job_.seed, checkpoint_identity(job_), worker.ready->environment};
        job.state.identity[kDataIdentity] = worker.ready->data_fingerprint;
      }
      job.memory.push_back(worker.segments.at(static_cast<std::size_t>(m.segment)));
      job.shards.push_back({job.memory.back()->bytes().first(static_cast<std::size_t>(m.bytes)), worker.ready->slices});
      job.snapshot_seconds = std::max(job.snapshot_seconds, m.seconds);
    }
    for (Worker& worker : workers_) worker.snapshots.pop_front();
    writer_.enqueue(std::move(job));
  }
}

void Agent::handle(Worker&, const Failed& m) {
  // A rank that only missed another knows less than the one that failed, or than the end of a process.
  fail({m.kind, m.message, m.kind == base::ErrorKind::comm ? 0 : 2});
}

void Agent::on_saved() {
  const auto result = writer_.take();
  if (!result) return;
  if (result->error) std::rethrow_exception(result->error);
  last_good_ = result->record.path;
  sinks_.each(&io::MetricsSink::on_checkpoint, result->record);
  for (Worker& worker : workers_) tell(worker, SnapshotSaved{result->segment});
}

void Agent::on_worker_end(Worker& worker) {
  worker.alive = false;
  const std::string how = worker.process->wait();
  if ((worker.finished && how.empty()) || (failure_ && how == "exit status 1")) return;
  fail({base::ErrorKind::comm,
        "rank " + std::to_string(worker.rank) + " (pid " + std::to_string(worker.process->pid()) + ") ended by " +
            (how.empty() ? "itself before it was done" : how) + " after step " + std::to_string(step_) +
            "; the last checkpoint is " + last_good_ + "; run the job again to go on from there",
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
  while (writer_.pending() > 0 && !killed_) {
    try {
      drain_writer();
    } catch (const std::exception& error) {  // its job is done with: the next one is another's
      spdlog::error("while the last checkpoint was written: {}", error.what());
    }
  }
}

void Agent::finish(const std::string& outcome) {
  const io::RunSummary summary{step_, base::monotonic_seconds() - begin_, outcome};
  sinks_.finish(summary);
}

}  // namespace

AgentResult run_agent(const AgentOptions& options) { return Agent(options).run(); }

}  // namespace trainerd::core
