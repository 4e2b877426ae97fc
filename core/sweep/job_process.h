#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "kernels/base/fd.h"

namespace trainerd::core::sweep {

/// The agent of one job of a sweep, in its own process group, so that a terminal's signals reach the sweep
/// alone. It is asked to stop (SIGTERM) when its parent dies, and saves; killed, if it still runs, when this
/// is destroyed.
class JobProcess {
 public:
  struct Command {
    std::string executable;
    std::vector<std::string> words;        ///< of its command line, the program's name first
    std::string log;                       ///< takes its output, after what is there
    std::vector<std::string> environment;  ///< "NAME=VALUE", over this process's
  };
  /// Throws DeviceError when it cannot be started, SpecError when the log cannot be opened.
  explicit JobProcess(const Command& command);
  ~JobProcess();
  JobProcess(const JobProcess&) = delete;
  JobProcess& operator=(const JobProcess&) = delete;

  /// Readable when the process has ended.
  int pidfd() const { return pidfd_.get(); }
  void signal(int number) const;
  /// Waits for the end. The exit status, or 128 + the signal that ended it.
  int wait();

 private:
  pid_t pid_ = -1;
  base::UniqueFd pidfd_;
  bool reaped_ = false;
};

}  // namespace trainerd::core::sweep
