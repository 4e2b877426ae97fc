#include "core/run/worker/worker.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/rank/device_rank.h"
#include "core/rank/gemm_peak.h"
#include "core/run/wire/channel.h"
#include "core/run/wire/messages.h"
#include "core/run/worker/batches.h"
#include "core/run/worker/copy_check.h"
#include "core/run/worker/evaluation.h"
#include "core/run/worker/evaluator.h"
#include "core/run/worker/injector.h"
#include "core/run/worker/judge_ties.h"
#include "core/run/worker/plan_check.h"
#include "core/run/worker/probe.h"
#include "core/run/worker/rank_status.h"
#include "core/run/worker/rank_world.h"
#include "core/run/worker/reference.h"
#include "core/run/worker/report_record.h"
#include "core/run/worker/restore.h"
#include "core/run/worker/resume_check.h"
#include "core/run/worker/saver.h"
#include "core/run/worker/trace_messages.h"
#include "core/run/worker/worker_failure.h"
#include "core/run/worker/worker_process.h"
#include "core/run/worker/worker_world.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "kernels/base/clock.h"

namespace trainerd::core::run {
namespace {

/// Thrown if the agent is gone: nobody receives messages, and there is no reason to finish.
struct AgentGone {};

/// A launched step.
struct Launched {
  std::int64_t step = 0, tokens = 0;  ///< `tokens`: of the run, up to the end of the step
  std::int64_t first_sample = 0;
  bool traced = false;
  double carried_stall = 0;  ///< seconds for which its start waited for a checkpoint
};

// Minimum interval between two progress reports of an evaluation.
constexpr double kProgressSeconds = 1;

class Worker {
 public:
  Worker(Channel& agent, WorkerMemory memory, std::optional<std::size_t> late, const io::FindS3& find_s3)
      : agent_(agent),
        find_s3_(find_s3),
        world_fd_(std::move(memory.world)),
        flights_fd_(std::move(memory.flights)),
        held_fds_(std::move(memory.held)),
        late_(late),
        saver_(std::move(memory.segments), [this] { await_agent(); }) {}
  ~Worker() { files_.stop(); }  // its loader may be waiting for a store
  /// Sets `in_steps` once the state is loaded and steps follow.
  void run(bool& in_steps);

 private:
  void build(const Start& start);
  Ready ready(const Start& start, const parallel::Topology& topology, Ready looked) const;
  void send(const WorkerMessage& message);
  void handle(const AgentMessage& message);
  void listen(bool wait);
  void await_agent();
  void launch(std::int64_t step);
  bool settle(std::size_t left);
  train::StepReport await_report(const Launched& launched, io::StepRecord& record);
  bool traces(std::int64_t step) const { return std::ranges::count(job_.trace.steps, step) > 0; }
  bool begins_idle(std::int64_t step) const {  // traced, slowed, or longer than what the page knows
    return traces(step) || job_.growth(step) > 1 || (injector_ && injector_->slows(step));
  }
  double mfu_of(const io::StepRecord& record);
  void save(std::int64_t step, SnapshotUse use, io::StepRecord& record);
  void send_snapshot();
  void send_trace(const io::StepRecord& record, double begin);
  Evaluator::Result evaluate(std::int64_t step);

  Channel& agent_;
  const io::FindS3& find_s3_;
  base::UniqueFd world_fd_, flights_fd_;
  std::vector<base::UniqueFd> held_fds_;  ///< until the state is loaded
  std::int64_t first_step_ = 0;           ///< steps done at the start
  std::int64_t launching_ = 0;            ///< sequences of the step launched last
  std::optional<std::size_t> late_;       ///< number of steps by which reports are late
  std::int64_t rank_number_ = 0;
  bool reports_ = true;
  job::JobSpec job_;
  bool stop_asked_ = false;
  std::int64_t cursor_ = 0, tokens_ = 0;
  std::string reference_;  ///< Ready::reference
  std::optional<rank::PeakRate> peak_;
  std::unique_ptr<RankWorld> world_;
  train::RankPage own_page_;            ///< used without the agent's page
  train::RankPage* page_ = &own_page_;  ///< this rank's activity
  std::unique_ptr<rank::DeviceRank> rank_;
  train::Trainer* trainer_ = nullptr;  ///< the rank's
  Saver saver_;
  io::DataFiles files_;                          ///< opens the data
  std::shared_ptr<io::TokenBlend> train_;        ///< a loader's thread may outlive the worker
  std::unique_ptr<train::BatchLoader> batches_;  ///< of training
  std::optional<Evaluator> evaluator_;
  std::optional<CopyCheck> copies_;
  std::optional<Injector> injector_;  ///< of a job with faults
  std::optional<StepJudge> judge_;    ///< of a job that verifies steps or has a policy for spikes
  std::deque<Launched> launched_;     ///< not reported yet
  double begin_ = 0;                  ///< start of the step that is reported next
  std::int64_t missed_before_ = 0;
  bool graphs_reported_ = false;
  RankStatus status_;
  std::vector<io::TraceSlice> checkpoint_stalls_;  ///< of the current step
  double carried_stall_ = 0;  ///< of a synchronous checkpoint, after its step's record was sent
};

void Worker::send(const WorkerMessage& message) {
  try {
    agent_.send(encode(message));
  } catch (const base::CommError&) {
    throw AgentGone{};
  }
}

void Worker::handle(const AgentMessage& message) {
  if (std::holds_alternative<Stop>(message)) stop_asked_ = true;
  if (std::holds_alternative<Drain>(message)) saver_.drain();
  if (const auto* every = std::get_if<SaveEvery>(&message)) saver_.save_every(every->seconds);
  if (const auto* saved = std::get_if<SnapshotSaved>(&message))
    saver_.segments().set_free(saved->segment, true);
  if (const auto* delayed = std::get_if<SnapshotDelayed>(&message))
    saver_.segments().set_delayed(delayed->segment);
}

void Worker::listen(bool wait) {
  while (wait || agent_.ready()) {
    const std::optional<std::string> text = agent_.receive();
    if (!text) throw AgentGone{};
    handle(decode_agent_message(*text));
    wait = false;
  }
  if (cpu_time_is_up()) send(StopNeeded{"SIGXCPU"});
}

/// Waits for a message; the page shows the wait, then the previous activity again.
void Worker::await_agent() {
  const train::Activity now = page_->activity();
  page_->enter(train::Activity::agent_wait);
  listen(true);
  page_->enter(now);
}

void Worker::build(const Start& start) {
  job_ = spec::parse_job(start.job_yaml, "job.yaml");
  rank_number_ = start.rank;
  reports_ = start.reports;
  if (job_.device != job::DeviceChoice::cuda && job_.isa != job::IsaChoice::automatic)
    kernels::limit_gemm_library(job::most_isa(job_));
  const parallel::Topology topology = spec::job_topology(job_);
  world_ = make_world(job_, start, topology, std::move(world_fd_), std::move(flights_fd_));
  if (world_->page() != nullptr) page_ = world_->page();
  page_->enter(train::Activity::load);
  rank_ = std::make_unique<rank::DeviceRank>(job_, start.layout, topology, start.rank, *world_,
                                             rank::DeviceRank::Observe{}, start.gemm_algorithms);
  trainer_ = &rank_->trainer();
  trainer_->show_on(*page_);
  if (!late_) late_ = topology.device.runs_behind_host() ? train::StepClock::kMaxSteps - 1 : 0;
  peak_.emplace(rank::peak_of(topology, rank_->backend(), job_.precision.compute, start.peak_flops));
  saver_.start(start, job_, *rank_, *late_ > 0);
  files_ = data_files(job_, find_s3_);
  train_ = training_data(job_, files_);
  if (const auto notice = limited_packing_notice(job_, *train_); notice && rank_number_ == 0) send(*notice);
  train_->start_order(start.order);
  if (job_.evaluate.every > 0) {
    evaluator_.emplace(job_, *trainer_, files_,
                       reports_ ? Evaluator::Duty::record : Evaluator::Duty::take_part);
    for (const io::NoticeRecord& notice : evaluator_->notices())
      if (rank_number_ == 0) send(notice);
  }
  auto pairs = evaluator_ ? evaluator_->pairs() : std::vector<ReferencePairs>{};
  pairs.insert(pairs.begin(), {train_, start.cursor, job_.batch.sequences(start.step, job_.steps)});
  const auto reference =
      make_reference({job_, start, saver_.snapshot(), *trainer_, std::move(pairs), find_s3_,
                      [this](const WorkerMessage& m) { send(m); }, [this] { world_->require_alive(); }});
  if (reference) reference_ = reference->checksum();
  if (evaluator_) evaluator_->use(reference);
  page_->enter(train::Activity::load);
  restore_state(start, std::exchange(held_fds_, {}), saver_.snapshot(), *trainer_, rank_->backend(),
                find_s3_);
  trainer_->begin_state_check();
  cursor_ = start.cursor;
  Ready looked = look_at_rank(job_, start, *rank_, *page_, *peak_);
  page_->enter(train::Activity::load);
  batches_ = make_loader(job_, *trainer_, train_, parallel::Pass::train,
                         job_.batch.spans(start.step, job_.steps), cursor_, reference);
  tokens_ = start.tokens;
  copies_.emplace(job_, rank_number_, *trainer_);
  if (job_.faults.any())
    injector_.emplace(
        job_.faults, rank_number_, rank_->layout().grid.ranks(), start.faults_done, *trainer_,
        [this](const FaultInjected& fault) { send(fault); },
        [this] { world_->reset_links("its connections were closed (injected)"); });
  if (job_.supervise.judges_steps()) {
    judge_.emplace(job_.supervise, rank_number_, rank_->layout().grid.ranks(), start.spikes,
                   judge_ties(*trainer_, {.send = [this](const WorkerMessage& m) { send(m); },
                                          .await = [this] { await_agent(); },
                                          .require_alive = [this] { world_->require_alive(); },
                                          .cursor = [this] { return cursor_ + launching_; }}));
    trainer_->judge_by(*judge_);
  }
  send(ready(start, topology, std::move(looked)));
  missed_before_ = rank_->backend().counters().missed_gemm_choices;  // by what looked at the device
}

Ready Worker::ready(const Start& start, const parallel::Topology& topology, Ready looked) const {
  Ready ready = std::move(looked);
  ready.device = topology.device.name;
  ready.threads = topology.device.threads;
  ready.peak_flops = peak_->flops_per_second();
  ready.slices = saver_.snapshot().slices();
  const train::Snapshot& snapshot = saver_.snapshot();
  ready.borrowed = replicas_may_be_elsewhere(start) ? snapshot.not_shared() : snapshot.borrowed();
  ready.environment = train::checkpoint_environment(topology.device, parallel::describe(rank_->layout()));
  ready.data_fingerprint = data_text(io::all_files(train_->sources()), start.data_content);
  ready.data_tokens = train_->tokens();
  ready.reference = reference_;
  ready.groups_seconds = world_->meeting_seconds();
  if (rank_number_ == 0) ready.gemm_algorithms = rank_->gemm_algorithms();
  ready.pci_bus_id = rank_->backend().target().pci_bus_id;
  return ready;
}

void Worker::launch(std::int64_t step) {
  launching_ = job_.batch.of_step(step);
  Launched launched{.step = step,
                    .tokens = tokens_ + launching_ * job_.model.seq_len,
                    .first_sample = cursor_,
                    .traced = traces(step),
                    .carried_stall = std::exchange(carried_stall_, 0.0)};
  // If the step waited for the previous checkpoint to reach the disk, it counts from the begin of that wait.
  if (launched_.empty()) begin_ = base::monotonic_seconds() - launched.carried_stall;
  checkpoint_stalls_.clear();
  if (launched.carried_stall > 0)
    checkpoint_stalls_.push_back({.name = "checkpoint",
                                  .category = "checkpoint",
                                  .start_seconds = begin_,
                                  .seconds = launched.carried_stall});
  page_->expect_longer(job_.growth(step));
  page_->begin_step(step);
  trainer_->keep_trace(launched.traced);
  // A snapshot of the previous step is complete and reported by then, so that the next can take another
  // segment.
  std::function<void()> before_update;
  if (saver_.under_way()) before_update = [this] { saver_.finish(), send_snapshot(); };
  copies_->begin(step);
  if (injector_) injector_->begin(step);
  if (injector_) before_update = injector_->before_update(std::move(before_update));
  trainer_->launch(step, *batches_, saver_.vote(step, stop_asked_), before_update);
  cursor_ += launching_, tokens_ = launched.tokens;
  launched_.push_back(launched);
}

train::StepReport Worker::await_report(const Launched& launched, io::StepRecord& record) {
  train::StepReport report = trainer_->report();
  world_->require_alive();
  if (!report.changed_state.empty()) {
    send(changed_state(rank_number_, launched.step, std::move(report.changed_state)));
    for (;;) await_agent();
  }
  // The rank that has the cause reports it; the agent ends the others.
  require_updated(report, launched.step, rank_number_, job_, [this] { await_agent(); });
  require_counted(report.loss_weight, launched.step,
                  {launched.first_sample, job_.batch.of_step(launched.step)});
  record.step = launched.step;
  record.tokens = launched.tokens;
  record.first_sample = launched.first_sample, record.samples = job_.batch.of_step(launched.step);
  put_report(report, *trainer_, job_, record);
  record.time[base::LedgerPart::checkpoint] += launched.carried_stall;
  put_counters(rank_->backend().counters(), job_, record, missed_before_);
  return report;
}

/// Reports the launched steps until `left` remain. If one brings a vote to stop or save, which all ranks see
/// at the same step, it reports all steps and saves after the last. Returns true if the vote is to stop.
bool Worker::settle(std::size_t left) {
  bool stop = false, checkpoint = false, memory = false;
  while (launched_.size() > (stop || checkpoint || memory ? 0 : left)) {
    const Launched launched = launched_.front();
    launched_.pop_front();
    io::StepRecord record;
    const train::StepReport report = await_report(launched, record);
    if (const auto hashed = copies_->take(launched.step, report.copy_hashes)) send(*hashed);
    stop = stop || report.vote.stop;
    checkpoint = checkpoint || report.vote.checkpoint;
    memory = memory || report.vote.memory;
    if (launched_.empty() && (stop || checkpoint || memory))
      save(launched.step, stop || checkpoint ? SnapshotUse::checkpoint : SnapshotUse::memory, record);
    if (injector_) injector_->measured(launched.step, record.time[base::LedgerPart::compute]);
    // The part `other` is the rest of the step's time: votes, the report, and the host's time between parts.
    const double begin = begin_;
    begin_ = base::monotonic_seconds();
    record.step_seconds = begin_ - begin;
    record.time[base::LedgerPart::other] = 0;
    record.time[base::LedgerPart::other] = record.step_seconds - record.time.sum();
    page_->end_step(record.step_seconds);
    record.tokens_per_second = static_cast<double>(job_.tokens_of_step(record.step)) / record.step_seconds;
    if (peak_->flops_per_second() > 0) record.mfu = mfu_of(record);
    // The step's record is sent first, so that a checkpoint on the disk never lacks its line in the log.
    if (reports_) send(record);
    status_.add(record);
    if (status_.due() || record.step == job_.steps) send(status_.take(rank_number_, *rank_, files_));
    if (record.step == std::min(first_step_ + kComparedSteps.second, job_.steps))
      send(MemoryUsed{rank_->memory().budget().total_bytes()});
    if (launched.traced) send_trace(record, begin);
    send_snapshot();
    if (graphs_reported_) continue;
    const auto notice = graphs_notice(rank_->backend().graph_use(), rank_number_, record.step);
    if (notice) graphs_reported_ = true, send(*notice);
  }
  return stop;
}

/// MFU relative to the rank's peak. Only the reporting rank may spend time on another measurement.
double Worker::mfu_of(const io::StepRecord& record) {
  const double reached = record.tokens_per_second * job::flops_per_token(job_.model) /
                         static_cast<double>(rank_->layout().grid.ranks());
  const double before = peak_->flops_per_second();
  if (reports_ && peak_->raise_to(reached)) {
    if (peak_->worth_telling()) send(raised_peak_notice(record.step, before, peak_->flops_per_second()));
    begin_ = base::monotonic_seconds();
  }
  return reached / peak_->flops_per_second();
}

void Worker::save(std::int64_t step, SnapshotUse use, io::StepRecord& record) {
  page_->enter(train::Activity::snapshot);
  const double start = base::monotonic_seconds();
  copies_->add_snapshot(step);
  const double stall = saver_.save({.use = use, .step = step, .cursor = cursor_, .tokens = tokens_});
  record.time[base::LedgerPart::checkpoint] += stall;
  checkpoint_stalls_.push_back(
      {.name = "checkpoint", .category = "checkpoint", .start_seconds = start, .seconds = stall});
  if (!job_.checkpoint.async) saver_.finish();
}

/// Sends the report of a completed snapshot, if there is one.
void Worker::send_snapshot() {
  const std::optional<SnapshotReady> filled = saver_.take_filled();
  if (!filled) return;
  send(*filled);
  const SnapshotSegments& segments = saver_.segments();
  const double start = base::monotonic_seconds();
  while (!job_.checkpoint.async && !segments.free(filled->segment) && !segments.delayed(filled->segment))
    await_agent();
  carried_stall_ = base::monotonic_seconds() - start;
}

/// Sends the time ledger's slices of the step, which began at `begin`.
void Worker::send_trace(const io::StepRecord& record, double begin) {
  std::vector<io::TraceSlice> slices = trainer_->trace();
  slices.insert(slices.end(), checkpoint_stalls_.begin(), checkpoint_stalls_.end());
  for (const StepTrace& part :
       trace_messages(record.step, std::move(slices), rank_number_, begin, begin + record.step_seconds))
    send(part);
}

Evaluator::Result Worker::evaluate(std::int64_t step) {
  page_->enter(train::Activity::evaluation);
  saver_.finish(), send_snapshot();
  double reported = base::monotonic_seconds();
  const Evaluator::Result result =
      evaluator_->run(step, {.stop_asked =
                                 [this] {
                                   listen(false);
                                   return stop_asked_;
                                 },
                             .batch_done = [this] { world_->require_alive(); },
                             .show =
                                 [&](const io::EvaluationProgress& progress) {
                                   if (base::monotonic_seconds() - reported < kProgressSeconds) return;
                                   reported = base::monotonic_seconds();
                                   send(progress);
                                 }});
  page_->enter(train::Activity::between);
  if (result.complete && reports_) send(result.record);
  return result;
}

void Worker::run(bool& in_steps) {
  const std::optional<std::string> first = agent_.receive();
  if (!first) throw AgentGone{};
  const AgentMessage message = decode_agent_message(*first);
  const auto* start = std::get_if<Start>(&message);
  base::check(start != nullptr, "a worker's first message is its start");
  build(*start);
  in_steps = true;

  std::int64_t step = first_step_ = start->step;
  Evaluator::Result evaluated = start->evaluate_first ? evaluate(step) : Evaluator::Result{};
  bool stop = evaluated.stop;
  saver_.begin(step, start->gathered ? Saver::State::in_memory : Saver::State::saved);
  page_->enter(train::Activity::between);
  while (step < job_.steps && !stop) {
    listen(false);
    if (begins_idle(step + 1) && (stop = settle(0))) break;
    launch(++step);
    stop = settle(saver_.due(step) || evaluation_due(job_, step) || traces(step) ? 0 : *late_);
    if (!evaluation_due(job_, step)) continue;
    // A stop does not wait for an evaluation: the next run does it.
    evaluated = stop ? Evaluator::Result{.complete = false, .stop = true} : evaluate(step);
    stop = evaluated.stop;
  }
  if (saver_.saved_step() != step) {
    io::StepRecord already_reported;
    save(step, SnapshotUse::checkpoint, already_reported);
  }
  saver_.finish(), send_snapshot();
  if (const auto hashed = copies_->last(step)) send(*hashed);
  send(Finished{step, stop && (step < job_.steps || !evaluated.complete)});
  page_->enter(train::Activity::done);
  while (!saver_.segments().all_free()) listen(true);
}

}  // namespace

int run_worker(base::UniqueFd control, WorkerMemory memory, std::optional<std::size_t> late,
               const io::FindS3& find_s3) {
  Channel agent(std::move(control));
  bool in_steps = false;
  try {
    Worker worker(agent, std::move(memory), late, find_s3);
    worker.run(in_steps);
    return 0;
  } catch (const AgentGone&) {
    return 1;
  } catch (const std::exception& error) {
    send_failure(agent, failure_of(error, in_steps));
    return 1;
  }
}

}  // namespace trainerd::core::run
