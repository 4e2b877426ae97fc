#include "core/supervise/agent.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <optional>
#include <utility>

#include "core/plan/dry_run.h"
#include "core/supervise/channel.h"
#include "core/supervise/checkpoint_writer.h"
#include "core/supervise/messages.h"
#include "core/supervise/output_directory.h"
#include "core/supervise/worker_process.h"
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

 private:
  std::vector<std::unique_ptr<io::MetricsSink>> sinks_;
};

class Agent {
 public:
  explicit Agent(const AgentOptions& options);
  AgentResult run();

 private:
  void resume();
  void open_sinks();
  void start_worker();
  void supervise();
  void on_signal();
  void on_message();
  void on_saved();
  void on_worker_end();
  void handle(const Ready& m);
  void handle(const io::StepRecord& m);
  void handle(const io::EvaluationRecord& m) { sinks_.each(&io::MetricsSink::on_evaluation, m); }
  void handle(const SnapshotReady& m);
  void handle(const Failed& m);
  void handle(const Finished& m) { finished_ = m; }
  void drain_writer();
  void finish(const std::string& outcome);
  std::string last_good() const;

  const AgentOptions& options_;
  const JobSpec& job_;
  double begin_ = base::monotonic_seconds();
  OutputDirectory output_;
  DryRun plan_;
  io::CheckpointStore store_;
  CheckpointWriter writer_;
  Sinks sinks_;
  Start start_;
  std::vector<base::Segment> segments_;
  std::optional<Channel> channel_;
  std::optional<WorkerProcess> worker_;
  bool channel_open_ = true, worker_alive_ = true;
  std::optional<Ready> ready_;
  std::optional<Finished> finished_;
  std::int64_t step_ = 0;
  std::optional<std::int64_t> saved_step_;
  int stop_signal_ = 0;
  bool killed_ = false;  ///< by a second signal: the worker is not waited for
};

DryRun checked_plan(const JobSpec& job) {
  const parallel::Topology topology = parallel::detect_topology(static_cast<int>(job.threads));
  const DryRun plan = dry_run(job, parallel::resolve_layout(job.parallel, topology, job.model.layers), topology.device);
  require_fits(plan, job, topology, kSnapshots);
  return plan;
}

Agent::Agent(const AgentOptions& options)
    : options_(options),
      job_(options.job),
      output_(options.job),
      plan_(checked_plan(options.job)),
      store_(output_.checkpoints(), options.job.checkpoint.keep),
      writer_(store_) {}

void Agent::resume() {
  const auto rejected = [](const std::string& path, const std::string& why) {
    spdlog::warn("checkpoint {} is damaged and will not be used: {}", path, why);
  };
  const auto found = store_.newest_valid(rejected);
  if (!found) return;
  const io::TrainingState& state = found->manifest.state;
  require_same_identity(found->where.path, state.identity, job_);
  start_.resume_path = found->where.path;
  start_.step = step_ = state.step;
  start_.cursor = state.cursor;
  start_.tokens = state.tokens;
  saved_step_ = state.step;
  spdlog::info("resuming from {} (step {})", found->where.path, state.step);
}

void Agent::open_sinks() {
  auto prometheus = std::make_unique<io::PrometheusSink>(job_.metrics);
  spdlog::info("metrics at http://{}/metrics", prometheus->address());
  sinks_.add(std::move(prometheus));
  sinks_.add(std::make_unique<io::JsonlSink>(output_.steps(), step_));
  sinks_.add(std::make_unique<io::ReportSink>(output_.report(), output_.steps(), to_yaml(job_)));
  sinks_.add(std::make_unique<io::ConsoleSink>(
      STDOUT_FILENO, options_.terminal ? io::ConsoleSink::Style::terminal : io::ConsoleSink::Style::plain));
}

void Agent::start_worker() {
  for (int i = 0; i < kSnapshots; ++i)
    segments_.push_back(base::Segment::create("trainerd-snapshot-" + std::to_string(i), plan_.snapshot_bytes));
  auto [ours, theirs] = Channel::make_pair();
  channel_.emplace(std::move(ours));
  std::vector<int> fds;
  for (const base::Segment& segment : segments_) fds.push_back(segment.fd());
  worker_.emplace(options_.executable, std::move(theirs), fds);
  start_.job_yaml = to_yaml(job_);
  channel_->send(encode(AgentMessage{start_}));
}

AgentResult Agent::run() {
  resume();
  open_sinks();
  if (step_ >= job_.steps) {
    spdlog::info("all {} steps are done already: {}", job_.steps, start_.resume_path);
    return {step_, 0};
  }
  start_worker();
  try {
    supervise();
  } catch (const base::Error& error) {
    drain_writer();
    std::string first_line = error.what();
    finish(first_line.substr(0, first_line.find('\n')));
    throw;
  }
  drain_writer();
  const bool stopped = killed_ || finished_->stopped;
  finish(stopped ? std::string("stopped by ") + (stop_signal_ == SIGTERM ? "SIGTERM" : "SIGINT") : "done");
  return {step_, stopped ? stop_signal_ : 0};
}

void Agent::supervise() {
  while ((channel_open_ || worker_alive_) && !killed_) {
    std::array<pollfd, 4> fds{pollfd{options_.signal_fd, POLLIN, 0},
                              pollfd{channel_open_ ? channel_->fd() : -1, POLLIN, 0},
                              pollfd{worker_alive_ ? worker_->pidfd() : -1, POLLIN, 0},
                              pollfd{writer_.event_fd(), POLLIN, 0}};
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[0].revents != 0) on_signal();
    // Messages before the end: what the worker said last is still in the socket.
    if (fds[1].revents != 0) on_message();
    else if (fds[2].revents != 0) on_worker_end();
    if (fds[3].revents != 0) on_saved();
  }
}

void Agent::on_signal() {
  signalfd_siginfo info{};
  if (::read(options_.signal_fd, &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return;
  const int signal = static_cast<int>(info.ssi_signo);
  const char* name = signal == SIGTERM ? "SIGTERM" : "SIGINT";
  if (stop_signal_ != 0) {
    spdlog::warn("{} again: stopping at once; the last checkpoint is {}", name, last_good());
    killed_ = true;
    return;
  }
  stop_signal_ = signal;
  spdlog::info("{}: finishing the step, saving, stopping (a second one stops at once)", name);
  try {
    channel_->send(encode(AgentMessage{Stop{}}));
  } catch (const base::CommError&) {
    // The worker has ended already; its end is handled where it is seen.
  }
}

void Agent::on_message() {
  const std::optional<std::string> text = channel_->receive();
  if (!text) {
    channel_open_ = false;
    return;
  }
  std::visit([this](const auto& message) { handle(message); }, decode_worker_message(*text));
}

void Agent::handle(const Ready& m) {
  ready_ = m;
  io::RunInfo info;
  info.name = job_.name;
  info.output = output_.path();
  info.device = m.device;
  info.threads = m.threads;
  info.parameters = count_parameters(job_.model).total;
  info.steps = job_.steps;
  info.start_step = step_;
  info.tokens_per_step = job_.tokens_per_step();
  info.flops_per_token = flops_per_token(job_.model);
  if (m.peak_flops > 0) info.peak_flops = m.peak_flops;
  info.precision = job_.precision.name;
  info.memory_planned_bytes = m.memory_planned_bytes;
  info.memory_regions = m.memory_regions;
  info.version = version();
  sinks_.each(&io::MetricsSink::on_start, info);
}

void Agent::handle(const io::StepRecord& m) {
  step_ = m.step;
  sinks_.each(&io::MetricsSink::on_step, m);
}

void Agent::handle(const SnapshotReady& m) {
  base::check(ready_.has_value(), "a worker is ready before it saves");
  CheckpointWriter::Job job;
  job.segment = m.segment;
  job.state = {m.step, m.cursor, m.tokens, job_.seed, checkpoint_identity(job_), ready_->environment};
  job.state.environment["data"] = ready_->data_fingerprint;
  job.shard = {segments_.at(static_cast<std::size_t>(m.segment)).bytes().first(static_cast<std::size_t>(m.bytes)), ready_->slices};
  job.snapshot_seconds = m.seconds;
  writer_.enqueue(std::move(job));
}

void Agent::handle(const Failed& m) {
  drain_writer();
  std::string message = m.message;
  if (m.kind == base::ErrorKind::diverged) message += "; the last good checkpoint is " + last_good();
  base::throw_error(m.kind, message);
}

void Agent::on_saved() {
  const auto result = writer_.take();
  if (!result) return;
  if (result->error) std::rethrow_exception(result->error);
  saved_step_ = result->record.step;
  sinks_.each(&io::MetricsSink::on_checkpoint, result->record);
  if (!channel_open_) return;
  try {
    channel_->send(encode(AgentMessage{SnapshotSaved{result->segment}}));
  } catch (const base::CommError&) {
    // The worker has ended; its end is handled where it is seen.
  }
}

void Agent::on_worker_end() {
  worker_alive_ = false;
  const std::string how = worker_->wait();
  if (finished_ && how.empty()) return;
  drain_writer();
  throw base::comm_error("rank 0 (pid " + std::to_string(worker_->pid()) + ") ended by " +
                         (how.empty() ? "itself before it was done" : how) + " after step " + std::to_string(step_) +
                         "; the last checkpoint is " + last_good() + "; run the job again to go on from there");
}

/// Lets every snapshot that is whole reach the disk. An error while one is written is thrown here at the latest.
void Agent::drain_writer() {
  while (writer_.pending() > 0) {
    pollfd p{writer_.event_fd(), POLLIN, 0};
    if (::poll(&p, 1, -1) > 0) on_saved();
  }
}

std::string Agent::last_good() const {
  if (!saved_step_) return "none";
  const auto list = store_.list();
  return list.empty() ? "none" : list.front().path;
}

void Agent::finish(const std::string& outcome) {
  const io::RunSummary summary{step_, base::monotonic_seconds() - begin_, outcome};
  sinks_.each(&io::MetricsSink::on_finish, summary);
}

}  // namespace

AgentResult run_agent(const AgentOptions& options) { return Agent(options).run(); }

}  // namespace trainerd::core
