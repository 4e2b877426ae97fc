#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/job/job.h"

namespace trainerd::core::run {

/// Variables that a job's workers get beside those of their agent, for the libraries that they use. Of ranks
/// that communicate by NCCL: as many connections to the device as it allows (32), so that streams do not wait
/// for each other in one queue; all kernels loaded at the start, since a first launch that loads one may wait
/// for a collective that waits for the launch (CUDA programming guide, "Lazy loading"); and the network
/// interface, exactly, where `interface` is the name or an address of one. Throws CommError when it is
/// neither.
std::map<std::string, std::string> worker_variables(const job::JobSpec& job, const std::string& interface);

/// "NAME=value" of `inherited`, which ends with a null pointer, and of those of `variables` that it does not
/// have: what the user has set stays.
std::vector<std::string> environment_with(const char* const* inherited,
                                          const std::map<std::string, std::string>& variables);

}  // namespace trainerd::core::run
