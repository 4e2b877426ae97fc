#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/fd.h"

namespace trainerd::core::run {

/// One worker: a child process of the running executable with only the descriptors it is given, in its own
/// process group, so that a terminal's signals reach the agent alone. Killed, if it still runs, when this is
/// destroyed.
class WorkerProcess {
 public:
  /// What of the agent's memory the worker gets, as descriptors that stay the agent's; -1: none.
  struct Memory {
    std::vector<int> segments;
    int world = -1, flights = -1;
    std::vector<int> held;
  };
  /// Runs `executable worker --control 3 --segments N ...` under the name "trainerd: rank 3"; `control`
  /// becomes descriptor 3, and those of `memory` follow it in their order (WorkerMemory). It gets the agent's
  /// environment, and `variables` that are not set there.
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
    int signal = 0;   ///< that ended it; 0: none did
  };
  /// Waits for the end.
  End wait();

 private:
  pid_t pid_ = -1;
  base::UniqueFd pidfd_;
  bool reaped_ = false;
};

/// What the worker does first: ignores the signals that ask a job to stop, which the agent relays as a vote.
void leave_signals_to_agent();

/// Names the calling thread, and those that it will make, for `top` and `ps -e`, which show 15 letters:
/// "trainerd:rank 3".
void name_rank(std::int64_t rank);

/// Whether this worker has got a SIGXCPU since the last call: the soft limit of CPU time counts for each
/// process, and the agent does not see a worker's.
bool cpu_time_is_up();

/// What the worker does next: dies with its parent. False when the parent is gone already.
bool die_with_parent(pid_t parent);

}  // namespace trainerd::core::run
