#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <utility>

#include "io/lines/line_file.h"
#include "io/lines/log_lines.h"
#include "io/lines/step_log.h"
#include "io/metrics/sinks.h"
#include "io/storage/file_errors.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"
#include "kernels/base/output_file.h"

namespace trainerd::io {
namespace {

bool is_regular(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

StepLogPrefix read_step_log(const std::string& path, std::int64_t last_step,
                            const std::function<void(const StepRecord&)>& visit) {
  StepLogPrefix prefix;
  std::int64_t number = 0, bytes = 0;
  read_log_lines(path, [&](const std::string& line, bool torn) {
    ++number;
    bytes += static_cast<std::int64_t>(line.size()) + (torn ? 0 : 1);
    StepRecord record;
    try {
      record = parse_step_record(line);
    } catch (const base::DataError&) {
      if (!torn) prefix.garbled.push_back({number, line});
      return true;
    }
    if (record.step > last_step) return false;
    visit(record);
    prefix.bytes = bytes;
    prefix.last_line = number;
    prefix.newline_missing = torn;
    return true;
  });
  return prefix;
}

namespace {

// The lines up to the last that is kept, without the garbled ones.
std::string without(const std::string& path, const StepLogPrefix& prefix) {
  std::string kept;
  std::int64_t number = 0;
  auto garbled = prefix.garbled.begin();
  read_log_lines(path, [&](const std::string& line, bool) {
    if (++number > prefix.last_line) return false;
    if (garbled != prefix.garbled.end() && garbled->number == number) ++garbled;
    else kept += line + "\n";
    return true;
  });
  return kept;
}

}  // namespace

struct JsonlSink::State {
  std::string path, warning;
  double last_tries = 0;
  LineFile file{"steps.jsonl"};
  std::deque<std::pair<std::int64_t, std::int64_t>> lines;  // step and bytes of the latest of this process
};

JsonlSink::JsonlSink(std::string path, std::int64_t start_step, double last_tries)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.last_tries = last_tries;
  s.path = std::move(path);
  const StepLogPrefix prefix = read_step_log(s.path, start_step, [](const StepRecord&) {});
  if (!prefix.garbled.empty()) {
    s.warning = set_aside(s.path, prefix.garbled);
    const std::string kept = without(s.path, prefix);
    if (const int error = base::write_file_atomically(s.path, std::as_bytes(std::span(kept))); error != 0)
      throw output_error(s.path, "write it without its garbled lines", error);
  }
  base::UniqueFd fd = base::open_append(s.path);
  if (!fd) throw output_error(s.path, "open", errno);
  if (prefix.garbled.empty() && is_regular(fd.get()) && base::file_bytes(fd.get()) != prefix.bytes &&
      ::ftruncate(fd.get(), prefix.bytes) != 0)
    throw output_error(s.path, "cut it back to the resumed step", errno);
  if (prefix.newline_missing && prefix.garbled.empty())
    if (const int error = base::write_all(fd.get(), std::as_bytes(std::span("\n", 1))); error != 0)
      throw output_error(s.path, "write", error);
  s.file.attach(std::move(fd));
}

const std::string& JsonlSink::warning() const { return state_->warning; }

JsonlSink::~JsonlSink() = default;

// One write a line: another process reading along, or a kill, never sees half of one.
void JsonlSink::on_step(const StepRecord& record) {
  State& s = *state_;
  const std::string line = to_json_line(record);
  if (!s.file.append(line)) return;
  s.lines.emplace_back(record.step, static_cast<std::int64_t>(line.size()) + 1);
}

// Workers never start again before a checkpoint that is complete.
void JsonlSink::on_checkpoint(const CheckpointRecord& record) {
  auto& lines = state_->lines;
  while (!lines.empty() && lines.front().first <= record.step) lines.pop_front();
}

void JsonlSink::on_restart(const RestartRecord& record) {
  State& s = *state_;
  std::int64_t bytes = 0;
  for (; !s.lines.empty() && s.lines.back().first > record.step; s.lines.pop_back())
    bytes += s.lines.back().second;
  s.file.take_back(bytes);
}

void JsonlSink::on_finish(const RunSummary&) {
  if (!state_->file.finish(state_->last_tries)) throw lost_lines(state_->path, state_->file.record());
}

std::vector<OutletRecord> JsonlSink::outlets() const { return {state_->file.record()}; }

}  // namespace trainerd::io
