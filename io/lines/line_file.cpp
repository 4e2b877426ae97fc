#include "io/lines/line_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::io {

LineFile::LineFile(std::string name, Patience patience) : patience_(patience) {
  record_.name = std::move(name);
}

void LineFile::attach(base::UniqueFd fd) {
  fd_ = std::move(fd);
  write_waiting();
}

void LineFile::append(const std::string& line) {
  if (waiting_.size() + line.size() + 1 > patience_.waiting_bytes) {
    ++record_.dropped;
  } else {
    waiting_ += line + "\n";
    ++record_.waiting;
  }
  if (fd_ && base::monotonic_seconds() >= next_try_) write_waiting();
}

/// Whether nothing waits any more.
bool LineFile::write_waiting() {
  std::size_t written = 0;
  int error = 0;
  while (written < waiting_.size() && error == 0) {
    const ssize_t n = ::write(fd_.get(), waiting_.data() + written, waiting_.size() - written);
    if (n >= 0) written += static_cast<std::size_t>(n);
    else if (errno != EINTR) error = errno;
  }
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(written);
  record_.waiting -= std::count(waiting_.begin(), end, '\n');
  waiting_.erase(waiting_.begin(), end);
  if (error == 0) {
    pause_ = next_try_ = 0;
    record_.error.clear();
    return true;
  }
  ++record_.failures;
  record_.error = base::errno_text(error);
  pause_ = std::clamp(2 * pause_, patience_.first_pause, patience_.longest_pause);
  next_try_ = base::monotonic_seconds() + pause_;
  return false;
}

bool LineFile::finish(double seconds) {
  const double end = base::monotonic_seconds() + seconds;
  while (fd_ && !write_waiting() && base::monotonic_seconds() < end)
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::min(pause_, std::max(0.0, end - base::monotonic_seconds()))));
  record_.dropped += std::exchange(record_.waiting, 0);
  waiting_.clear();
  return record_.dropped == 0;
}

base::SpecError lost_lines(const std::string& path, const OutletRecord& record, std::source_location where) {
  return base::spec_error(path + ": " + std::to_string(record.dropped) + " lines could not be written" +
                              (record.error.empty() ? "" : ": " + record.error) +
                              "; free some space or set output: to another directory",
                          where);
}

}  // namespace trainerd::io
