#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// One worker process: a child that runs the same executable. It gets only the descriptors it is given, and
/// its own process group, so that a terminal's signals reach the agent alone. The destructor kills it if it
/// is running.
class WorkerProcess {
 public:
  /// The agent's memory for the worker, as descriptors that the agent keeps; -1: none.
  struct Memory {
    std::vector<int> segments;
    int world = -1, flights = -1;
    std::vector<int> held;
  };
  /// Runs `executable worker --control 3 --segments N ...` with the process name "trainerd: rank 3".
  /// `control` becomes descriptor 3, and those of `memory` follow in order (WorkerMemory). Its environment is
  /// the agent's and those `variables` that are not set there.
  WorkerProcess(const std::string& executable, std::int64_t rank, base::UniqueFd control,
                const Memory& memory, const std::map<std::string, std::string>& variables = {});
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  /// Readable when the process has ended.
  int pidfd() const { return pidfd_.get(); }
  void kill();
  struct End {
    std::string how;  ///< "exit status 1", "signal 9 (Killed)"; empty: status 0
    int signal = 0;   ///< that ended it; 0: none
  };
  /// Waits until the process has ended.
  End wait();

 private:
  pid_t pid_ = -1;
  base::UniqueFd pidfd_;
  bool reaped_ = false;
};

/// First call of a worker: ignores stop signals, which the agent turns into a vote.
void leave_signals_to_agent();

/// Names the calling thread, and threads that it creates, for `top` and `ps -e`, which show 15 letters:
/// "trainerd:rank 3".
void name_rank(std::int64_t rank);

/// True if this worker has received SIGXCPU since the last call. The soft CPU time limit counts per process,
/// and the agent is not told about a worker's.
bool cpu_time_is_up();

/// Second call of a worker: it will be killed when its parent ends. Returns false if the parent has ended
/// already.
bool die_with_parent(pid_t parent);

}  // namespace trainerd::core::run
