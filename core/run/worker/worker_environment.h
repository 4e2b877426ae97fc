#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/job/job.h"

namespace trainerd::core::run {

/// Additional environment variables for a job's workers. For ranks that use NCCL: the maximum number of
/// device connections (32), so that streams do not share a queue; loading of all kernels at the start,
/// because a launch that loads one lazily may wait for a collective that waits for the launch (CUDA
/// programming guide, "Lazy loading"); and the exact network interface, if `interface` is its name or
/// address. Throws CommError if it is neither.
std::map<std::string, std::string> worker_variables(const job::JobSpec& job, const std::string& interface);

/// `inherited`, which ends with a null pointer, and "NAME=value" of those `variables` that it lacks: the
/// user's settings take precedence.
std::vector<std::string> environment_with(const char* const* inherited,
                                          const std::map<std::string, std::string>& variables);

}  // namespace trainerd::core::run
