#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/slurm/commands.h"

// Parsers for the output of Slurm's commands, and for times as it takes them.

namespace trainerd::core::slurm {

/// The number in the output of `sbatch --parsable` ("17" or "17;cluster"); empty: none.
std::string job_number(const std::string& text);

/// States by job, from lines "17_3 RUNNING" of squeue.
std::map<std::string, std::string> read_job_states(const std::string& text);

/// The smallest resources over all nodes, from lines "CPUS GRES" of sinfo; zeros if there are no nodes. GRES
/// is like "gpu:h100:8(S:0-1),nvme:1" or "(null)".
SlurmNodes read_nodes(const std::string& text);

/// Seconds of a time limit as sbatch takes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours,
/// days-hours:minutes or days-hours:minutes:seconds. Empty for no limit (0) and for other text (UNLIMITED).
std::optional<double> read_time_limit(const std::string& text);

/// NodeAddr in the output of `scontrol --oneliner show node`.
std::optional<std::string> read_node_address(const std::string& text);

}  // namespace trainerd::core::slurm
