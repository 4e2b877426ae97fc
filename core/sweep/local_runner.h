#pragma once

#include <list>
#include <string>
#include <vector>

#include "core/sweep/job_process.h"
#include "core/sweep/runner.h"
#include "core/sweep/sweep.h"

namespace trainerd::core::sweep {

/// Runs jobs as processes on this machine, `at_once` of them at a time. Each gets its own share of the CUDA
/// devices.
class LocalRunner final : public JobRunner {
 public:
  struct Options {
    std::string executable;
    int signal_fd = -1;                          ///< a signalfd for the signals that request a stop
    std::vector<std::string> cuda_devices = {};  ///< this process's, as in CUDA_VISIBLE_DEVICES
    std::function<void(const std::string&)> say;
  };
  LocalRunner(const Sweep& sweep, Options options);

  void await_earlier(const std::vector<std::size_t>& jobs) override;
  void run(const std::vector<std::size_t>& jobs, std::optional<std::int64_t> stop_after,
           const OnEnd& on_end) override;

 private:
  struct Running {
    Running(std::size_t a_job, std::size_t a_slot, const JobProcess::Command& command)
        : job(a_job), slot(a_slot), process(command) {}
    std::size_t job;
    std::size_t slot;
    JobProcess process;
  };
  void start(std::size_t job, std::optional<std::int64_t> stop_after);
  std::vector<std::string> environment_of(std::size_t slot) const;
  void on_signal();
  bool wait_for_signal(int milliseconds);

  const Sweep& sweep_;
  Options options_;
  run::StopSignals signals_;
  std::vector<bool> slot_taken_;
  std::list<Running> running_;
};

}  // namespace trainerd::core::sweep
