#include "core/supervise/output_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>

#include "io/metrics/report/page.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::core {
namespace {

[[noreturn]] void unwritable(const std::string& path, int error) {
  throw base::spec_error("the output directory cannot be written: " + path + ": " + base::errno_text(error) +
                         "; set `output` to one that can");
}

constexpr auto kLookAgain = std::chrono::milliseconds(50);

std::string lock_file(const std::string& path) { return path + "/.lock"; }

std::string text_of(const std::string& path) {
  std::array<std::byte, 256> bytes;
  const base::UniqueFd fd = base::open_read(path);
  const std::int64_t n = fd ? base::read_at(fd.get(), bytes, 0) : 0;
  return {reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(std::max<std::int64_t>(n, 0))};
}

// Empty when there is no such file.
std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

OutputDirectory::OutputDirectory(const std::string& path) : path_(path) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) unwritable(path_, error.value());
  const std::string lock = lock_file(path_);
  lock_ = base::UniqueFd(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock_) unwritable(lock, errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0)
    throw base::spec_error("another run is using " + path_ +
                           "; wait for it, or set `output` to another directory");
}

OutputDirectory OutputDirectory::marked(const std::string& path, const std::string& run, double seconds) {
  const double deadline = base::monotonic_seconds() + seconds;
  while (text_of(lock_file(path)) != run) {
    if (base::monotonic_seconds() > deadline)
      throw base::spec_error("this node does not see node 0's output directory " + path +
                             ": set `output` to a directory that all nodes share (NFS, Lustre), by the same path");
    std::this_thread::sleep_for(kLookAgain);
  }
  return {path, Unlocked{}};
}

void OutputDirectory::mark(const std::string& run) const {
  int error = ::ftruncate(lock_.get(), 0) == 0 ? 0 : errno;
  if (error == 0 && ::lseek(lock_.get(), 0, SEEK_SET) < 0) error = errno;
  if (error == 0) error = base::write_all(lock_.get(), std::as_bytes(std::span(run)));
  // A shared file system may keep it to itself until then.
  if (error == 0 && ::fsync(lock_.get()) != 0) error = errno;
  if (error != 0) unwritable(lock_file(path_), error);
}

void OutputDirectory::write(const std::string& path, const std::string& text) const {
  if (const int error = base::write_file_atomically(path, std::as_bytes(std::span(text))); error != 0) unwritable(path, error);
}

void OutputDirectory::write_job(const JobSpec& job) const { write(path_ + "/job.yaml", to_yaml(job)); }

std::string OutputDirectory::written_job() const { return content_of(path_ + "/job.yaml"); }

std::string OutputDirectory::gemm_algorithms() const { return content_of(gemm_algorithms_file()); }

void OutputDirectory::write_gemm_algorithms(const std::string& text) const { write(gemm_algorithms_file(), text); }

bool OutputDirectory::report_is_current() const {
  std::error_code error;
  const auto report_time = std::filesystem::last_write_time(report(), error);
  if (error) return false;
  if (text_of(report()).find(io::kRunningTag) != std::string::npos) return false;
  const auto steps_time = std::filesystem::last_write_time(steps(), error);
  return error || report_time >= steps_time;
}

}  // namespace trainerd::core
