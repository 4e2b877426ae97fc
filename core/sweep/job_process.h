#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "kernels/base/fd.h"

namespace trainerd::core::sweep {

/// The agent of one job of a sweep, in its own process group, so that a terminal's signals reach only the
/// sweep. If its parent dies it gets SIGTERM and saves. The destructor kills it if it still runs.
class JobProcess {
 public:
  struct Command {
    std::string executable;
    std::vector<std::string> words;        ///< words of its command line, with the program's name first
    std::string log;                       ///< file to append its output to
    std::vector<std::string> environment;  ///< "NAME=VALUE", added to or replacing this process's
  };
  /// Throws DeviceError if it cannot be started, SpecError if the log cannot be opened.
  explicit JobProcess(const Command& command);
  ~JobProcess();
  JobProcess(const JobProcess&) = delete;
  JobProcess& operator=(const JobProcess&) = delete;

  /// Readable once the process has ended.
  int pidfd() const { return pidfd_.get(); }
  void signal(int number) const;
  /// Waits for the end. Returns the exit status, or 128 + the signal that ended it.
  int wait();

 private:
  pid_t pid_ = -1;
  base::UniqueFd pidfd_;
  bool reaped_ = false;
};

}  // namespace trainerd::core::sweep
