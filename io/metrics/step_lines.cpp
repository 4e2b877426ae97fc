#include "io/metrics/step_lines.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "io/lines/log_lines.h"
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

// Returns the lines up to the last kept one, without the invalid ones.
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

StepLines::StepLines(std::string path, const std::string& name, std::int64_t start_step,
                     const StepOfLine& step_of)
    : path_(std::move(path)), file_(name) {
  const StepLogPrefix prefix = read_step_lines(path_, start_step, step_of, [] {});
  if (!prefix.garbled.empty()) {
    warning_ = set_aside(path_, prefix.garbled);
    const std::string kept = without(path_, prefix);
    if (const int error = base::write_file_atomically(path_, std::as_bytes(std::span(kept))); error != 0)
      throw output_error(path_, "write it without its garbled lines", error);
  }
  base::UniqueFd fd = base::open_append(path_);
  if (!fd) throw open_error(path_, errno);
  if (prefix.garbled.empty() && is_regular(fd.get()) && base::file_bytes(fd.get()) != prefix.bytes &&
      ::ftruncate(fd.get(), prefix.bytes) != 0)
    throw output_error(path_, "cut it back to the resumed step", errno);
  if (prefix.newline_missing && prefix.garbled.empty())
    if (const int error = base::write_all(fd.get(), std::as_bytes(std::span("\n", 1))); error != 0)
      throw output_error(path_, "write", error);
  file_.attach(std::move(fd));
}

void StepLines::append(std::int64_t step, const std::string& line) {
  if (file_.append(line)) lines_.emplace_back(step, static_cast<std::int64_t>(line.size()) + 1);
}

void StepLines::take_back_after(std::int64_t step) {
  std::int64_t bytes = 0;
  for (; !lines_.empty() && lines_.back().first > step; lines_.pop_back()) bytes += lines_.back().second;
  file_.take_back(bytes);
}

void StepLines::finish(double seconds) {
  if (!file_.finish(seconds)) throw lost_lines(path_, file_.record());
}

}  // namespace trainerd::io
