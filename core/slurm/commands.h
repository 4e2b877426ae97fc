#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

// The Slurm commands on the PATH. They throw SpecError with Slurm's own message if a command is missing or
// fails.

namespace trainerd::core::slurm {

/// Submits a script file and returns the job's number.
std::string submit_script(const std::string& script);
/// Output of `sbatch --test-only`: when and where it could start. Submits nothing.
std::string test_script(const std::string& script);

/// Cancels jobs: "17", or "17_3" for a task of an array. Jobs that have already ended are no error.
void cancel_slurm_jobs(const std::vector<std::string>& jobs);

/// The states (PENDING, RUNNING, COMPLETED, ...) of a job or of an array's tasks, by "17" or "17_3". Slurm
/// forgets jobs some minutes after their end (MinJobAge), so missing jobs are over.
std::map<std::string, std::string> slurm_states(const std::string& job);

/// Numbers of the unfinished jobs of a script file, without duplicates: "17", also for an array.
std::vector<std::string> slurm_jobs_of(const std::string& script);

/// The smallest node resources of a partition; with an empty name: of all partitions.
struct SlurmNodes {
  std::int64_t cpus = 0;
  std::int64_t gpus = 0;
};
SlurmNodes slurm_nodes(const std::string& partition);

/// The address of a node by its Slurm name; nothing if Slurm does not know it or is not installed.
std::optional<std::string> slurm_node_address(const std::string& node);

}  // namespace trainerd::core::slurm
