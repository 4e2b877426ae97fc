#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace trainerd::base {

/// What control groups leave of the machine to this process: the tightest limit of its group and all above
/// it. A container and a batch job have such limits, and going over the memory's is death without a message.
struct CgroupLimits {
  std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max();  ///< the maximum: no limit
  double cores = 0;  ///< CPU seconds per second; 0: no limit
};

/// Reads the limits of version 2 (memory.max, cpu.max) and of version 1 (memory.limit_in_bytes,
/// cpu.cfs_quota_us) from where `membership` says this process is, below `mount`. What cannot be read or
/// understood is no limit.
CgroupLimits read_cgroup_limits(const std::string& membership = "/proc/self/cgroup",
                                const std::string& mount = "/sys/fs/cgroup");

/// Bytes of memory that processes here may use: the machine's, or less by a control group.
std::int64_t node_memory_bytes();

}  // namespace trainerd::base
