#include "io/lines/line_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr const char* kRemoved = "the file was removed while it was written";

}  // namespace

LineFile::LineFile(std::string name, Patience patience) : patience_(patience) {
  record_.name = std::move(name);
}

void LineFile::attach(base::UniqueFd fd) {
  fd_ = std::move(fd);
  write_waiting();
}

bool LineFile::append(const std::string& line) {
  const bool kept = waiting_.size() + line.size() + 1 <= patience_.waiting_bytes;
  if (kept) {
    waiting_ += line + "\n";
    ++record_.waiting;
  } else {
    ++record_.dropped;
  }
  if (fd_ && base::monotonic_seconds() >= next_try_) write_waiting();
  return kept;
}

void LineFile::take_back(std::int64_t bytes) {
  const auto unwritten = std::min(bytes, static_cast<std::int64_t>(waiting_.size()));
  const auto end = waiting_.end() - unwritten;
  record_.waiting -= std::count(end, waiting_.end(), '\n');
  waiting_.erase(end, waiting_.end());
  to_cut_ += bytes - unwritten;
  if (fd_) write_waiting();
}

/// Returns 0 or an errno value. Files that are not regular are not truncated.
int LineFile::cut() {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) return errno;
  if (S_ISREG(status.st_mode) && ::ftruncate(fd_.get(), std::max<off_t>(0, status.st_size - to_cut_)) != 0)
    return errno;
  to_cut_ = 0;
  return 0;
}

bool LineFile::is_removed() const {
  struct stat status {};
  return ::fstat(fd_.get(), &status) == 0 && status.st_nlink == 0;
}

/// Returns true if no lines are left to write.
bool LineFile::write_waiting() {
  std::size_t written = 0;
  int error = to_cut_ > 0 ? cut() : 0;
  while (written < waiting_.size() && error == 0) {
    const ssize_t n = ::write(fd_.get(), waiting_.data() + written, waiting_.size() - written);
    if (n >= 0) written += static_cast<std::size_t>(n);
    else if (errno != EINTR) error = errno;
  }
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(written);
  const std::int64_t lines = std::count(waiting_.begin(), end, '\n');
  record_.waiting -= lines;
  written_ += lines;
  waiting_.erase(waiting_.begin(), end);
  if (error == 0) {
    pause_ = next_try_ = 0;
    record_.error = is_removed() ? kRemoved : "";
    if (!record_.error.empty()) record_.dropped += std::exchange(written_, 0);
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
  if (record.error == kRemoved)
    return base::spec_error(path + " was removed while the run wrote it: its last " +
                                std::to_string(record.dropped) + " lines are lost",
                            where);
  return base::spec_error(path + ": " + std::to_string(record.dropped) + " lines could not be written" +
                              (record.error.empty() ? "" : ": " + record.error) +
                              "; free some space or set output: to another directory",
                          where);
}

}  // namespace trainerd::io
