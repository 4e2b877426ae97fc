#include "core/run/agent/fault_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {

FaultLog::FaultLog(std::string path) : path_(std::move(path)) {
  std::ifstream file(path_);
  if (!file.is_open() && ::access(path_.c_str(), F_OK) == 0)
    throw base::spec_error(path_ + ": cannot read: " + base::errno_text(errno));
  // An incomplete last line was being written when the agent ended: that fault was not made.
  for (std::string line; std::getline(file, line) && !file.eof();) done_.push_back(line);
}

void FaultLog::add(const std::string& id) {
  done_.push_back(id);
  const base::UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  const std::string line = id + "\n";
  int error = fd ? base::write_all(fd.get(), std::as_bytes(std::span(line))) : errno;
  if (error == 0 && ::fsync(fd.get()) != 0) error = errno;
  if (error != 0) throw base::spec_error(path_ + ": cannot write: " + base::errno_text(error));
}

void CheckpointFaults::on_step(std::int64_t step, std::int64_t first, std::int64_t count) {
  for (DueFault& due : plan_.due(step)) {
    const bool here = due.fault.rank >= first && due.fault.rank < first + count;
    if (due.fault.kind != job::FaultKind::flip_checkpoint || !here) continue;
    plan_.set_done(due.id);
    waiting_.push_back(std::move(due));
  }
}

std::vector<DueFault> CheckpointFaults::take(std::int64_t step) {
  std::vector<DueFault> taken;
  const auto waits = [&](const DueFault& due) { return due.fault.step > step; };
  std::copy_if(waiting_.begin(), waiting_.end(), std::back_inserter(taken), std::not_fn(waits));
  std::erase_if(waiting_, std::not_fn(waits));
  return taken;
}

std::string flip_bit_of_file(const std::string& path) {
  const base::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  std::array<char, 1> byte{};
  int error = fd && ::fstat(fd.get(), &status) == 0 ? 0 : errno;
  const off_t at = status.st_size / 2;
  if (error == 0 && ::pread(fd.get(), byte.data(), 1, at) != 1) error = errno != 0 ? errno : EIO;
  byte[0] = static_cast<char>(byte[0] ^ 1);
  if (error == 0 && ::pwrite(fd.get(), byte.data(), 1, at) != 1) error = errno;
  if (error != 0) throw base::checkpoint_error(path + ": cannot flip a bit: " + base::errno_text(error));
  return "bit 0 of byte " + std::to_string(at) + " of " + path;
}

}  // namespace trainerd::core::run
