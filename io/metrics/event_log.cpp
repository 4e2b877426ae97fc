#include "io/metrics/event_log.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <utility>
#include <vector>

#include "io/lines/line_file.h"
#include "io/lines/log_lines.h"
#include "io/metrics/sinks.h"
#include "io/storage/file_errors.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"
#include "kernels/base/output_file.h"

namespace trainerd::io {
namespace {

std::int64_t step_of(const EventRecord& event) {
  return std::visit([](const auto& record) { return record.step; }, event);
}

/// Number of events of this process that a restart can reach, a few MB at most.
constexpr std::size_t kMaxLatest = 10000;

bool is_evaluation_after(const EventRecord& event, std::int64_t step) {
  const auto* evaluation = std::get_if<EvaluationRecord>(&event);
  return evaluation != nullptr && evaluation->step > step;
}

}  // namespace

EventLogKept read_event_log(const std::string& path, std::int64_t last_step,
                            const std::function<void(const EventRecord&)>& visit) {
  EventLogKept kept;
  std::int64_t number = 0;
  read_log_lines(path, [&](const std::string& line, bool torn) {
    ++number;
    EventRecord event;
    try {
      event = parse_event_record(line);
    } catch (const base::DataError&) {
      if (!torn) kept.garbled.push_back({number, line});
      kept.all = false;
      return true;
    }
    if (step_of(event) > last_step && !std::holds_alternative<NoticeRecord>(event)) {
      kept.all = false;
      return true;
    }
    visit(event);
    kept.text += line + "\n";
    kept.all &= !torn;
    return true;
  });
  return kept;
}

struct EventLogSink::State {
  std::string path, warning;
  double last_tries = 0;
  LineFile file{"events.jsonl"};
  /// The latest events of this process. A restart may go back behind a complete checkpoint, because a
  /// snapshot in another node's memory may be older than it.
  std::deque<std::pair<EventRecord, std::string>> latest;
  void append(const EventRecord& event);
  void append_line(const EventRecord& event, const std::string& line) {
    if (file.append(line)) latest.emplace_back(event, line);
  }
};

void EventLogSink::State::append(const EventRecord& event) {
  append_line(event, to_json_line(event));
  if (latest.size() > kMaxLatest) latest.pop_front();
}

EventLogSink::EventLogSink(std::string path, std::int64_t start_step, double last_tries)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.last_tries = last_tries;
  s.path = std::move(path);
  const EventLogKept kept = read_event_log(s.path, start_step, [](const EventRecord&) {});
  if (!kept.garbled.empty()) s.warning = set_aside(s.path, kept.garbled);
  if (!kept.all)
    if (const int error = base::write_file_atomically(s.path, std::as_bytes(std::span(kept.text)));
        error != 0)
      throw output_error(s.path, "cut it back to the resumed step", error);
  base::UniqueFd fd = base::open_append(s.path);
  if (!fd) throw open_error(s.path, errno);
  s.file.attach(std::move(fd));
}

EventLogSink::~EventLogSink() = default;

const std::string& EventLogSink::warning() const { return state_->warning; }

void EventLogSink::on_evaluation(const EvaluationRecord& record) { state_->append(record); }
void EventLogSink::on_checkpoint(const CheckpointRecord& record) { state_->append(record); }
void EventLogSink::on_notice(const NoticeRecord& record) { state_->append(record); }

/// Removes evaluations of later steps, which will be repeated. Checkpoints and notices stay.
void EventLogSink::on_restart(const RestartRecord& record) {
  State& s = *state_;
  const auto first = std::find_if(s.latest.begin(), s.latest.end(), [&](const auto& entry) {
    return is_evaluation_after(entry.first, record.step);
  });
  std::int64_t bytes = 0;
  for (auto entry = first; entry != s.latest.end(); ++entry)
    bytes += static_cast<std::int64_t>(entry->second.size()) + 1;
  if (bytes == 0) return;
  const std::vector<std::pair<EventRecord, std::string>> behind(first, s.latest.end());
  s.latest.erase(first, s.latest.end());
  s.file.take_back(bytes);
  for (const auto& [event, line] : behind)
    if (!is_evaluation_after(event, record.step)) s.append_line(event, line);
}

void EventLogSink::on_finish(const RunSummary&) {
  if (!state_->file.finish(state_->last_tries)) throw lost_lines(state_->path, state_->file.record());
}

std::vector<OutletRecord> EventLogSink::outlets() const { return {state_->file.record()}; }

}  // namespace trainerd::io
