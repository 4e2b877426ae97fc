#pragma once

#include <signal.h>

#include <mutex>
#include <string>
#include <thread>

#include "kernels/base/fd.h"

namespace trainerd::apps {

/// During its lifetime, a signal that ends the process (SIGINT, SIGTERM, SIGHUP) first removes a directory.
/// Create it before any thread.
class RemoveOnSignal {
 public:
  RemoveOnSignal();
  ~RemoveOnSignal();
  RemoveOnSignal(const RemoveOnSignal&) = delete;
  RemoveOnSignal& operator=(const RemoveOnSignal&) = delete;
  void set(const std::string& directory);

 private:
  void watch();

  sigset_t before_{};
  base::UniqueFd signals_, end_;
  std::mutex mutex_;
  std::string directory_;
  std::thread thread_;
};

/// A descriptor for the stop signals. Call it before any thread is created, because threads inherit the
/// blocked signals. From then on, writing to a closed pipe or beyond a file-size limit is an error instead of
/// a signal.
base::UniqueFd open_stop_signals();

}  // namespace trainerd::apps
