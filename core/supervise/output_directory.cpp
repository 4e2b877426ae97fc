#include "core/supervise/output_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"

namespace trainerd::core {
namespace {

[[noreturn]] void unwritable(const std::string& path, int error) {
  throw base::spec_error("the output directory cannot be written: " + path + ": " + base::errno_text(error) +
                         "; set `output` to one that can");
}

}  // namespace

OutputDirectory::OutputDirectory(const std::string& path) : path_(path) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) unwritable(path_, error.value());
  const std::string lock = path_ + "/.lock";
  lock_ = base::UniqueFd(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock_) unwritable(lock, errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0)
    throw base::spec_error("another run is using " + path_ +
                           "; wait for it, or set `output` to another directory");
}

void OutputDirectory::write_job(const JobSpec& job) const {
  const std::string path = path_ + "/job.yaml", text = to_yaml(job);
  if (const int error = base::write_file_atomically(path, std::as_bytes(std::span(text))); error != 0)
    unwritable(path, error);
}

bool OutputDirectory::report_is_current() const {
  std::error_code error;
  const auto report_time = std::filesystem::last_write_time(report(), error);
  if (error) return false;
  const auto steps_time = std::filesystem::last_write_time(steps(), error);
  return error || report_time >= steps_time;
}

}  // namespace trainerd::core
