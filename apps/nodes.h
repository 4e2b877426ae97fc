#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/run/nodes/membership.h"
#include "core/spec/surroundings.h"

namespace trainerd::apps {

/// Options of `trainerd run` for the job's nodes; empty or -1: not given.
struct NodeArgs {
  std::int64_t nodes = -1;
  std::int64_t node = -1;
  bool spare = false;
  std::string rendezvous;  ///< host:port
  double timeout_seconds = -1;
  std::string interface;
};

using core::spec::Environment;
/// The address of a node by its name in the scheduler; none where that does not know it.
using NodeAddress = std::function<std::optional<std::string>(const std::string& node)>;
/// Of this process.
std::optional<std::string> process_environment(const std::string& name);

/// Nodes of the Slurm step that this process is a task of; none outside of one. Throws SpecError when the
/// step has several tasks on a node.
std::optional<std::int64_t> slurm_step_nodes(const Environment& environment);

/// Where this agent stands among the `nodes` and `spares` of its job, which have the numbers after them: by
/// the options, or else by the Slurm step that it is a task of. Under Slurm they meet at the step's first
/// node: by its name where the network knows that, else at its `address`. TRAINERD_TOKEN is the job's token
/// where it is set. None for a job of one node that names no rendezvous. Throws SpecError when something is
/// missing or contradicts. With a `coordinator` they need no address.
std::optional<core::run::MembershipOptions> find_membership(const NodeArgs& args, std::int64_t nodes,
                                                            std::int64_t spares,
                                                            const Environment& environment,
                                                            const NodeAddress& address,
                                                            const std::string& coordinator = {});

/// The hosts of a list as Slurm writes it: "gpu[1-3,07],login,a[1-2]b[0-1]". Throws SpecError.
std::vector<std::string> expand_host_list(const std::string& list);

}  // namespace trainerd::apps
