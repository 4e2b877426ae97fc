#include "io/metrics/event_log.h"

#include <fcntl.h>

#include <cerrno>
#include <fstream>

#include "io/metrics/sinks.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

base::DataError failed(const std::string& path, const char* what, int error,
                       std::source_location where = std::source_location::current()) {
  return base::data_error(path + ": cannot " + what + ": " + base::errno_text(error) +
                              "; free some space or set output: to another directory",
                          where);
}

std::int64_t step_of(const EventRecord& event) {
  return std::visit([](const auto& record) { return record.step; }, event);
}

}  // namespace

EventLogKept read_event_log(const std::string& path, std::int64_t last_step,
                            const std::function<void(const EventRecord&)>& visit) {
  EventLogKept kept;
  std::ifstream file(path, std::ios::binary);
  std::string line;
  for (std::int64_t number = 1; std::getline(file, line); ++number) {
    const bool torn = file.eof();  // no line end: the last write did not finish
    EventRecord event;
    try {
      event = parse_event_record(line);
    } catch (const base::DataError& e) {
      if (!torn && file.peek() != std::ifstream::traits_type::eof())
        throw base::data_error(path + ":" + std::to_string(number) + ": " + e.what() +
                               "; mend or remove the file");
      kept.all = false;
      return kept;
    }
    if (step_of(event) > last_step && !std::holds_alternative<NoticeRecord>(event)) {
      kept.all = false;
      continue;
    }
    visit(event);
    kept.text += line + "\n";
    kept.all &= !torn;
  }
  return kept;
}

struct EventLogSink::State {
  std::string path;
  base::UniqueFd fd;

  void append(const EventRecord& event) const {
    const std::string line = to_json_line(event) + "\n";
    if (const int error = base::write_all(fd.get(), std::as_bytes(std::span(line))); error != 0)
      throw failed(path, "write", error);
  }
};

EventLogSink::EventLogSink(std::string path, std::int64_t start_step) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = std::move(path);
  const EventLogKept kept = read_event_log(s.path, start_step, [](const EventRecord&) {});
  if (!kept.all)
    if (const int error = base::write_file_atomically(s.path, std::as_bytes(std::span(kept.text)));
        error != 0)
      throw failed(s.path, "cut it back to the resumed step", error);
  s.fd = base::UniqueFd(::open(s.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!s.fd) throw failed(s.path, "open", errno);
}

EventLogSink::~EventLogSink() = default;

void EventLogSink::on_evaluation(const EvaluationRecord& record) { state_->append(record); }
void EventLogSink::on_checkpoint(const CheckpointRecord& record) { state_->append(record); }
void EventLogSink::on_notice(const NoticeRecord& record) { state_->append(record); }

}  // namespace trainerd::io
