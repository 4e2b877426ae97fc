#include "io/console/run_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <ctime>

#include "io/storage/file_errors.h"
#include "kernels/base/clock.h"
#include "kernels/base/output_file.h"

namespace trainerd::io {
namespace {

constexpr double kLogFinishSeconds = 2.0;

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
  base::UniqueFd fd = base::open_append(path);
  if (!fd) throw open_error(path, errno);
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
  file_.finish(kLogFinishSeconds);
}

}  // namespace trainerd::io
