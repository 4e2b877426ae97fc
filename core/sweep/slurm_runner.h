#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/slurm/batch_script.h"
#include "core/sweep/runner.h"
#include "core/sweep/sweep.h"

namespace trainerd::core::sweep {

/// Runs jobs as tasks of Slurm arrays, one array after the other for each kind of resources. Slurm continues
/// to run them if this process ends. The next process finds them by their script, OUTPUT/slurm/array.sbatch,
/// and waits for them.
class SlurmRunner final : public JobRunner {
 public:
  struct Options {
    std::string executable;  ///< absolute path on the nodes
    int signal_fd = -1;      ///< a signalfd for the signals that request a stop
    std::function<void(const std::string&)> say;
    double look_again_seconds = 2;
  };
  /// Throws SpecError for sbatch options that an array cannot have.
  SlurmRunner(const Sweep& sweep, Options options);

  void await_earlier(const std::vector<std::size_t>& jobs) override;
  void run(const std::vector<std::size_t>& jobs, std::optional<std::int64_t> stop_after,
           const OnEnd& on_end) override;

 private:
  void run_array(const slurm::SlurmResources& resources, const std::vector<std::size_t>& jobs,
                 std::optional<std::int64_t> stop_after, const OnEnd& on_end);
  std::optional<std::map<std::string, std::string>> states_of(const std::string& array);
  void look_again(const std::vector<std::string>& arrays);
  /// The script file of all arrays of this sweep and of no other job. The next process finds remaining arrays
  /// by it.
  std::string script_file() const;

  const Sweep& sweep_;
  Options options_;
  std::vector<slurm::SbatchOption> sbatch_;
  run::StopSignals signals_;
  std::optional<double> silent_since_;  ///< monotonic seconds since when Slurm does not answer
};

}  // namespace trainerd::core::sweep
