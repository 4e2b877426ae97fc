#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/run/nodes/membership.h"
#include "core/spec/surroundings.h"

namespace trainerd::apps {

/// What `trainerd run` is told of the job's nodes; empty and -1: nothing.
struct NodeArgs {
  std::int64_t nodes = -1;
  std::int64_t node = -1;
  std::string rendezvous;  ///< host:port
  double timeout_seconds = -1;
  std::string interface;
};

using core::spec::Environment;
/// Of this process.
std::optional<std::string> process_environment(const std::string& name);

/// Where this agent stands among the `nodes` of its job: by the options, or else by the Slurm step that it is
/// a task of. None for a job of one node that names no rendezvous. Throws SpecError when something is missing
/// or contradicts.
std::optional<core::run::MembershipOptions> find_membership(const NodeArgs& args, std::int64_t nodes,
                                                            const Environment& environment);

/// The hosts of a list as Slurm writes it: "gpu[1-3,07],login,a[1-2]b[0-1]". Throws SpecError.
std::vector<std::string> expand_host_list(const std::string& list);

}  // namespace trainerd::apps
