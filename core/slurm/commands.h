#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

// The Slurm commands on the PATH. They throw SpecError, with Slurm's own words, when a command is not there
// or fails.

namespace trainerd::core::slurm {

/// Submits the script of a file and returns the number of its job.
std::string submit_script(const std::string& script);
/// What `sbatch --test-only` says of it: when it could start, and where. Submits nothing.
std::string test_script(const std::string& script);

/// Cancels jobs: "17", or of an array "17_3". Those that have ended already are no error.
void cancel_slurm_jobs(const std::vector<std::string>& jobs);

/// The states (PENDING, RUNNING, COMPLETED, ...) of a job, or of the tasks of an array, by "17" or "17_3".
/// Slurm forgets jobs some minutes after their end (MinJobAge): what is not there is over.
std::map<std::string, std::string> slurm_states(const std::string& job);

/// The numbers of the jobs that were made of the script of a file and are not over, each once: "17", also of
/// an array.
std::vector<std::string> slurm_jobs_of(const std::string& script);

/// The least that a node of a partition has; empty: of all partitions.
struct SlurmNodes {
  std::int64_t cpus = 0;
  std::int64_t gpus = 0;
};
SlurmNodes slurm_nodes(const std::string& partition);

/// The address of a node by its Slurm name; none when Slurm does not know it or is not here.
std::optional<std::string> slurm_node_address(const std::string& node);

}  // namespace trainerd::core::slurm
