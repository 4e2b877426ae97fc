#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "io/metrics/line_file.h"
#include "io/metrics/sinks.h"
#include "io/metrics/step_log.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

base::SpecError failed(const std::string& path, const char* what, int error,
                       std::source_location where = std::source_location::current()) {
  return base::spec_error(path + ": cannot " + what + ": " + base::errno_text(error) +
                              "; free some space or set output: to another directory",
                          where);
}

bool is_regular(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

StepLogPrefix read_step_log(const std::string& path, std::int64_t last_step,
                            const std::function<void(const StepRecord&)>& visit) {
  StepLogPrefix prefix;
  if (!is_regular(path)) return prefix;
  std::ifstream file(path, std::ios::binary);
  std::string line;
  for (std::int64_t number = 1; std::getline(file, line); ++number) {
    const bool torn = file.eof();  // no line end: the last write did not finish
    StepRecord record;
    try {
      record = parse_step_record(line);
    } catch (const base::DataError& e) {
      if (torn || file.peek() == std::ifstream::traits_type::eof()) return prefix;
      throw base::data_error(path + ":" + std::to_string(number) + ": " + e.what() +
                             "; mend or remove the file");
    }
    if (record.step > last_step) return prefix;
    visit(record);
    prefix.bytes += static_cast<std::int64_t>(line.size()) + (torn ? 0 : 1);
    prefix.newline_missing = torn;
  }
  return prefix;
}

struct JsonlSink::State {
  std::string path;
  double last_tries = 0;
  LineFile file{"steps.jsonl"};
};

JsonlSink::JsonlSink(std::string path, std::int64_t start_step, double last_tries) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.last_tries = last_tries;
  s.path = std::move(path);
  const StepLogPrefix prefix = read_step_log(s.path, start_step, [](const StepRecord&) {});
  base::UniqueFd fd(::open(s.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) throw failed(s.path, "open", errno);
  if (is_regular(s.path) && base::file_bytes(fd.get()) != prefix.bytes && ::ftruncate(fd.get(), prefix.bytes) != 0)
    throw failed(s.path, "cut it back to the resumed step", errno);
  if (prefix.newline_missing)
    if (const int error = base::write_all(fd.get(), std::as_bytes(std::span("\n", 1))); error != 0) throw failed(s.path, "write", error);
  s.file.attach(std::move(fd));
}

JsonlSink::~JsonlSink() = default;

// One write a line: another process reading along, or a kill, never sees half of one.
void JsonlSink::on_step(const StepRecord& record) { state_->file.append(to_json_line(record)); }

void JsonlSink::on_finish(const RunSummary&) {
  if (!state_->file.finish(state_->last_tries)) throw lost_lines(state_->path, state_->file.record());
}

std::vector<OutletRecord> JsonlSink::outlets() const { return {state_->file.record()}; }

}  // namespace trainerd::io
