#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace trainerd::base {

/// Limits of this process by control groups: the tightest limit of its group and all groups above it.
/// Containers and batch jobs have such limits. Exceeding the memory limit kills a process without a message.
struct CgroupLimits {
  std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max();  ///< the maximum: no limit
  double cores = 0;  ///< CPU seconds per second; 0: no limit
};

/// Reads the limits of version 2 (memory.max, cpu.max) and of version 1 (memory.limit_in_bytes,
/// cpu.cfs_quota_us) of the groups listed in `membership`, below `mount`. A file that cannot be read or
/// parsed sets no limit.
CgroupLimits read_cgroup_limits(const std::string& membership = "/proc/self/cgroup",
                                const std::string& mount = "/sys/fs/cgroup");

/// Bytes of memory available to processes here: the machine's, or less if a control group limits it.
std::int64_t node_memory_bytes();

}  // namespace trainerd::base
