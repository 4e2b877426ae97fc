#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/slurm/commands.h"

// What Slurm's commands print.

namespace trainerd::core {

/// The number in what `sbatch --parsable` prints ("17" or "17;cluster"); empty: there is none.
std::string job_number(const std::string& text);

/// States by job: lines "17_3 RUNNING" of squeue.
std::map<std::string, std::string> read_job_states(const std::string& text);

/// The least of all nodes, which are lines "CPUS GRES" of sinfo; zeros: there are none. GRES is as in
/// "gpu:h100:8(S:0-1),nvme:1" or "(null)".
SlurmNodes read_nodes(const std::string& text);

/// NodeAddr of what `scontrol --oneliner show node` prints.
std::optional<std::string> read_node_address(const std::string& text);

}  // namespace trainerd::core
