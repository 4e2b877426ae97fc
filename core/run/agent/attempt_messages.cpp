#include <utility>

#include "core/run/agent/attempt.h"
#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "io/text/text.h"
#include "kernels/base/error.h"

// Part of the attempt (attempt.h): messages from the ranks.

namespace trainerd::core::run {

namespace {

// Interval between two readings of the node's GPUs.
constexpr double kDeviceSeconds = 5.0;

}  // namespace

void Attempt::on_message(Worker& worker) {
  const std::optional<std::string> text = worker.channel->receive();
  if (!text) {
    worker.channel_open = false;
    return;
  }
  std::visit([&](auto&& m) { handle(worker.rank, std::forward<decltype(m)>(m)); },
             decode_worker_message(*text));
}

/// The descriptions of the snapshots stay on this node. The leader gets one summary for all ranks of a node.
void Attempt::handle(std::int64_t rank, Ready m) {
  run_.snapshots().describe(rank, std::exchange(m.slices, {}), std::exchange(m.borrowed, {}));
  ready_.add(rank, std::move(m));
  set_rank_state(run_.membership().node(), rank, 1, io::RankState::ready);
  begin_if_all_ready();
  if (!run_.membership().leads() && all_ready())
    run_.membership().send(run_.preflight().add_findings(ready_.summary(number_, run_.evaluated_data())));
}

void Attempt::handle_node(std::int64_t node, const NodeReady& m) {
  ready_.add_node(node, m);
  set_node_state(node, io::RankState::ready);
  begin_if_all_ready();
}

void Attempt::begin_if_all_ready() {
  if (!all_ready()) return;
  set_rank_states(io::RankState::training);
  run_.on_all_ready(ready_);
  watch_devices();
  for (const auto& record : std::exchange(early_, {}))
    std::visit([&](const auto& r) { handle(plan_.here.first, r); }, record);
}

void Attempt::watch_devices() {
  for (const auto& [rank, ready] : ready_.ranks()) {
    if (ready.pci_bus_id.empty()) continue;
    device_ids_.push_back(ready.pci_bus_id);
    device_ranks_.push_back(rank);
  }
  if (!device_ids_.empty()) devices_.emplace(device_ids_, kDeviceSeconds);
}

void Attempt::on_devices() { run_.devices().on_taken(devices_->take(), device_ranks_, device_ids_); }

/// All ranks were ready before the first step, but each has its own channel: a record may arrive before the
/// last `Ready`.
void Attempt::handle(std::int64_t, const io::StepRecord& m) {
  if (all_ready()) run_.on_step(m);
  else early_.emplace_back(m);
}

void Attempt::handle(std::int64_t, const io::EvaluationRecord& m) {
  if (all_ready()) run_.on_evaluation(m);
  else early_.emplace_back(m);
}

void Attempt::handle(std::int64_t, const io::EvaluationProgress& m) {
  if (all_ready()) run_.sinks().each(&io::MetricsSink::on_evaluation_progress, m);
}

void Attempt::handle(std::int64_t, const ReferenceProgress& m) {
  const double left = m.seconds / static_cast<double>(m.done) * static_cast<double>(m.pairs - m.done);
  log::info("the reference's log-probabilities: {} of {} pairs, about {} left", io::with_commas(m.done),
            io::with_commas(m.pairs), io::short_duration(left));
}

void Attempt::handle(std::int64_t rank, const MemoryUsed& m) {
  report_memory(rank, m.bytes);
  run_.on_memory_used(rank, m.bytes);
}

void Attempt::handle(std::int64_t, const FaultInjected& m) { run_.on_injected(m); }

void Attempt::handle(std::int64_t, CopiesHashed m) { run_.on_copies(std::move(m)); }

void Attempt::handle(std::int64_t, ResultsDiffer m) { run_.on_differing(std::move(m)); }

void Attempt::handle(std::int64_t, const SpikeActed& m) { run_.on_spike(m); }

void Attempt::handle(std::int64_t, const io::NoticeRecord& m) { run_.notify(m.kind, m.message, m.details); }

void Attempt::handle(std::int64_t, const io::RankStatusRecord& m) {
  if (all_ready()) run_.on_rank_status(m);
}

void Attempt::handle(std::int64_t rank, const StopNeeded& m) {
  run_.request_stop({m.reason + " at rank " + std::to_string(rank)});
}

void Attempt::handle(std::int64_t rank, const StepTrace& m) {
  const std::string path = traces_.add(rank, m);
  if (!path.empty()) log::info("the trace of step {} is {}", m.step, path);
}

void Attempt::handle(std::int64_t rank, const Failed& m) {
  // A rank that only waited for another knows less than the rank that failed, or than a process exit.
  const bool missed = m.kind == base::ErrorKind::comm;
  // Restarted ranks that fail to connect may have the same cause as the failure before.
  const bool starts = missed && !m.retry;
  Failure failure{.kind = m.kind,
                  .message = m.message,
                  .weight = missed ? 0 : 2,
                  .retry = m.retry || (starts && run_.was_ready())};
  if (starts) failure.cause = {kFailedStart, true};
  // Which rank first notices a failed connection is random, so the cause does not name the rank.
  if (m.retry) failure.cause = missed ? FailureCause{kFailedCommunication, true} : failed_device(rank);
  fail(std::move(failure));
}

void Attempt::handle(std::int64_t rank, const Finished& m) {
  finished_[rank] = m;
  set_rank_state(run_.membership().node(), rank, 1, io::RankState::finished);
  if (!all_finished_here()) return;
  if (!run_.membership().leads()) run_.membership().send(NodeFinished{number_});
  run_.on_finished(m.stopped);
}

void Attempt::handle_node(std::int64_t node, const NodeFinished&) {
  finished_nodes_.insert(node);
  set_node_state(node, io::RankState::finished);
}

void Attempt::handle(std::int64_t rank, const SnapshotReady& m) {
  workers_.at(static_cast<std::size_t>(rank - plan_.here.first)).snapshots.push_back(m);
  save_complete_steps();
}

/// A snapshot is complete when every rank has filled its segment.
void Attempt::save_complete_steps() {
  for (;;) {
    HeldStep held;
    SnapshotUse use = SnapshotUse::checkpoint;
    double seconds = 0;
    for (const Worker& worker : workers_) {
      if (worker.snapshots.empty()) return;
      const SnapshotReady& m = worker.snapshots.front();
      base::check(ready_.ranks().contains(worker.rank), "a worker is ready before it saves");
      if (worker.rank == plan_.here.first) {
        held = {m.step, m.cursor, m.tokens, {}, {}};
        use = m.use;
      }
      base::check(m.step == held.step && m.use == use, "ranks save the same steps in turn");
      held.segments.push_back(m.segment);
      held.bytes.push_back(m.bytes);
      seconds = std::max(seconds, m.seconds);
    }
    for (Worker& worker : workers_) worker.snapshots.pop_front();
    run_.on_snapshot(std::move(held), use, seconds, ready_.ranks().at(plan_.here.first).environment);
  }
}

}  // namespace trainerd::core::run
