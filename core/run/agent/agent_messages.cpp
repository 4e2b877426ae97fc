#include <fmt/format.h>

#include "core/run/agent/agent_state.h"
#include "core/run/log/log.h"
#include "core/train/snapshot.h"
#include "io/text/text.h"
#include "kernels/base/error.h"

namespace trainerd::core {

namespace {

// Between two readings of the node's GPUs.
constexpr double kDeviceSeconds = 5.0;

template <class Record>
Record stamped(Record record) {
  record.wall_time = base::wall_seconds();
  return record;
}

}  // namespace

void Agent::on_message(Worker& worker) {
  const std::optional<std::string> text = worker.channel->receive();
  if (!text) {
    worker.channel_open = false;
    return;
  }
  const WorkerMessage message = decode_worker_message(*text);
  // The leader judges for all; a failure goes to it through `fail`.
  if (!membership_.leads() &&
      (std::holds_alternative<Ready>(message) || std::holds_alternative<Finished>(message)))
    membership_.send(RankMessage{worker.rank, *text});
  std::visit([&](const auto& m) { handle(worker.rank, m); }, message);
}

void Agent::on_node_event(const Membership::Event& event) {
  if (event.message) {
    std::visit([&](const auto& message) { on_message(event.node, message); }, *event.message);
  } else if (!membership_.over()) {
    fail({base::ErrorKind::comm,
          membership_.name_of(event.node) + " was lost after step " + std::to_string(step_) +
              ": its agent has ended or its host is out of reach",
          1});
  }
}

void Agent::on_message(std::int64_t node, const RankMessage& m) {
  const WorkerMessage message = decode_worker_message(m.text);
  base::check(membership_.leads() && node == m.rank / here_.count,
              "a node speaks of its own ranks, to the leader");
  if (const auto* ready = std::get_if<Ready>(&message)) handle(m.rank, *ready);
  if (const auto* finished = std::get_if<Finished>(&message)) handle(m.rank, *finished);
}

/// Any rank's vote stops all: the leader learns what to call it.
void Agent::on_message(std::int64_t node, const StopAsked& m) {
  request_stop({m.request.reason + " at " + membership_.name_of(node), m.request.exit_signal});
}

void Agent::handle(std::int64_t rank, const Ready& m) {
  ready_[rank] = m;
  if (!all_ready()) return;
  on_all_ready();
  for (const auto& record : std::exchange(early_, {}))
    std::visit([&](const auto& r) { handle(rank, r); }, record);
}

void Agent::on_all_ready() {
  const Ready& first = ready_.begin()->second;
  if (!first.gemm_algorithms.empty() && membership_.leads())
    output_.write_gemm_algorithms(first.gemm_algorithms);
  if (topology_.device.kind == kernels::DeviceKind::cpu)
    log::info("{} kernels, {}", first.environment.at("isa"), first.environment.at("gemm_library"));
  if (!membership_.leads() && sinks_.none()) return;
  for (const auto& [rank, ready] : ready_)
    if (ready.data_fingerprint != data_text(data_.files, data_.content))
      throw base::data_error(
          "rank " + std::to_string(rank) + " sees other data than " +
          membership_.name_of(membership_.node()) +
          (here_.has(rank)
               ? ": a file changed while the run started"
               : " (" + ready.data_fingerprint + ", not " + data_text(data_.files, data_.content) +
                     "): give " + membership_.name_of(rank / here_.count) + " the files that node 0 has"));
  if (resumed_) {
    const std::string changed = environment_differences(resumed_->environment, first.environment);
    if (!changed.empty()) log::warn("the continuation will not be bit for bit: {}", changed);
  }
  io::RunInfo info = run_info();
  info.device = first.device;
  info.data_tokens = first.data_tokens;
  for (const auto& [rank, ready] : ready_) info.threads += ready.threads;
  if (first.peak_flops > 0) info.peak_flops = first.peak_flops * static_cast<double>(layout_.grid.ranks());
  info.peak_measured = topology_.device.kind == kernels::DeviceKind::cpu;
  sinks_.each(&io::MetricsSink::on_start, info);
  record_begin();
  for (const io::NoticeRecord& change : changes_) notify(change.kind, change.message, change.details);
  watch_outlets();
  watch_devices();
}

/// On a node whose sinks can tell of its GPUs.
void Agent::watch_devices() {
  std::vector<std::string> devices;
  for (const auto& [rank, ready] : ready_) {
    if (!here_.has(rank) || ready.pci_bus_id.empty()) continue;
    devices.push_back(ready.pci_bus_id);
    device_ranks_.push_back(rank);
  }
  if (!devices.empty()) devices_.emplace(std::move(devices), kDeviceSeconds);
}

void Agent::on_devices() {
  const DeviceWatch::Taken taken = devices_->take();
  if (!taken.problem.empty()) log::warn("{}", taken.problem);
  for (std::size_t i = 0; i < taken.readings.size(); ++i)
    sinks_.each(&io::MetricsSink::on_device, io::DeviceRecord{device_ranks_.at(i), taken.readings[i]});
}

/// Every rank was ready before the first step, but each speaks through a channel of its own: a record may be
/// heard first.
void Agent::handle(std::int64_t, const io::StepRecord& m) {
  if (!all_ready()) return early_.emplace_back(m), void();
  step_ = m.step;
  if (time_limit_) time_limit_->add_step(m.step_seconds);
  sinks_.each(&io::MetricsSink::on_step, stamped(m));
  watch_outlets();
  if (m.reference_gemms > 0 && !std::exchange(slow_gemms_told_, true))
    notify(io::NoticeKind::warning,
           "oneDNN computes some matrix products by its reference implementation, many times slower than "
           "need be: "
           "see trainerd_reference_gemms_total, and report the model's sizes and this CPU");
  if (plan_check_) plan_check_->add(m);
  compare_with_plan();
}

void Agent::handle(std::int64_t rank, const MemoryUsed& m) {
  if (plan_check_) plan_check_->add_memory(rank, m.bytes);
  compare_with_plan();
}

void Agent::compare_with_plan() {
  const auto record = plan_check_ ? plan_check_->take() : std::nullopt;
  if (!record) return;
  if (record->terms.size() > 1)
    log::info("the plan against steps {} to {} (medians):", record->first_step, record->last_step);
  for (const io::PredictionTerm& term : record->terms) {
    const bool bytes = term.name == "memory_bytes";
    log::info(
        "{}{} planned, {} measured: {:+.1f}%{}",
        record->terms.size() > 1 ? fmt::format("  {:<15} ", term.name) : "memory of the step: ",
        bytes ? io::short_bytes(static_cast<std::int64_t>(term.predicted))
              : io::short_duration(term.predicted),
        bytes ? io::short_bytes(static_cast<std::int64_t>(term.measured)) : io::short_duration(term.measured),
        100 * term.error, bytes || term.name == "step_seconds" ? "" : " of the step");
  }
  sinks_.each(&io::MetricsSink::on_prediction, *record);
}

void Agent::handle(std::int64_t, const io::EvaluationRecord& m) {
  if (!all_ready()) return early_.emplace_back(m), void();
  sinks_.each(&io::MetricsSink::on_evaluation, stamped(m));
}

void Agent::handle(std::int64_t, const io::NoticeRecord& m) { notify(m.kind, m.message, m.details); }

void Agent::handle(std::int64_t rank, const StepTrace& m) {
  const std::string path = traces_.add(rank, m);
  if (!path.empty()) log::info("the trace of step {} is {}", m.step, path);
}

void Agent::handle(std::int64_t, const Failed& m) {
  // A rank that only missed another knows less than the one that failed, or than the end of a process.
  fail({m.kind, m.message, m.kind == base::ErrorKind::comm ? 0 : 2});
}

}  // namespace trainerd::core
