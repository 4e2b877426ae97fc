#include "io/console/run_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <ctime>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr double kLastTries = 2.0;  // seconds

/// "2026-01-31T12:00:00.123+0100"
std::string timestamp() {
  const double now = base::wall_seconds();
  const auto seconds = static_cast<std::time_t>(std::floor(now));
  const std::tm local = fmt::localtime(seconds);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}{:%z}", local,
                     static_cast<int>(1000 * (now - std::floor(now))), local);
}

}  // namespace

void RunLog::open(const std::string& path) {
  const std::lock_guard lock(mutex_);
  base::UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
  if (!fd)
    throw base::spec_error(path + " cannot be opened: " + base::errno_text(errno) +
                           "; set output: to another directory");
  file_.attach(std::move(fd));
}

void RunLog::add(const std::string& level, const std::string& text) {
  const std::string line = fmt::format("{} {:<7} {}", timestamp(), level, text);
  const std::lock_guard lock(mutex_);
  file_.append(line);
}

OutletRecord RunLog::record() const {
  const std::lock_guard lock(mutex_);
  return file_.record();
}

void RunLog::finish() {
  const std::lock_guard lock(mutex_);
  file_.finish(kLastTries);
}

}  // namespace trainerd::io
