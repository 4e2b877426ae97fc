#include "core/supervise/output_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "kernels/base/error.h"

namespace trainerd::core {
namespace {

[[noreturn]] void unwritable(const std::string& path, int error) {
  throw base::spec_error("the output directory cannot be written: " + path + ": " + base::errno_text(error) +
                         "; set `output` to one that can");
}

void write_aside_and_rename(const std::string& path, const std::string& text) {
  const std::string aside = path + ".partial";
  const base::UniqueFd fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) unwritable(aside, errno);
  int error = base::write_all(fd.get(), std::as_bytes(std::span(text)));
  if (error == 0 && ::fsync(fd.get()) != 0) error = errno;
  if (error == 0 && std::rename(aside.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(aside.c_str());
    unwritable(path, error);
  }
}

}  // namespace

OutputDirectory::OutputDirectory(const JobSpec& job) : path_(job.output) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) unwritable(path_, error.value());
  const std::string lock = path_ + "/.lock";
  lock_ = base::UniqueFd(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock_) unwritable(lock, errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0)
    throw base::spec_error("another run is using " + path_ + "; wait for it, or set `output` to another directory");
  write_aside_and_rename(path_ + "/job.yaml", to_yaml(job));
}

}  // namespace trainerd::core
