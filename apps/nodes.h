#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/run/nodes/membership.h"
#include "core/spec/surroundings.h"

namespace trainerd::apps {

/// Node options of `trainerd run`; empty or -1: not given.
struct NodeArgs {
  std::int64_t nodes = -1;
  std::int64_t node = -1;
  bool spare = false;
  std::string rendezvous;  ///< host:port
  double timeout_seconds = -1;
  std::string interface;
};

using core::spec::Environment;
/// Resolves a node's name in the scheduler to an address; none if the scheduler does not know it.
using NodeAddress = std::function<std::optional<std::string>(const std::string& node)>;
/// Environment variable of this process.
std::optional<std::string> process_environment(const std::string& name);

/// Number of nodes of the Slurm step that this process is a task of; none outside of a step. Throws SpecError
/// if the step has several tasks per node.
std::optional<std::int64_t> slurm_step_nodes(const Environment& environment);

/// The place of this agent among the job's `nodes` and its `spares`, which are numbered after them: from the
/// options, or else from the Slurm step of this process. Under Slurm the rendezvous is at the step's first
/// node: by its name if that resolves, else at its `address`. TRAINERD_TOKEN, if set, is the job's token.
/// None for a job of one node without a rendezvous. Throws SpecError if something is missing or
/// contradictory. With a `coordinator` no address is needed.
std::optional<core::run::MembershipOptions> find_membership(const NodeArgs& args, std::int64_t nodes,
                                                            std::int64_t spares,
                                                            const Environment& environment,
                                                            const NodeAddress& address,
                                                            const std::string& coordinator = {});

/// Expands a host list in Slurm's format: "gpu[1-3,07],login,a[1-2]b[0-1]". Throws SpecError.
std::vector<std::string> expand_host_list(const std::string& list);

}  // namespace trainerd::apps
