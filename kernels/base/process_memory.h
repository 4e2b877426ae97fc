#pragma once

#include <cstdint>
#include <string>

namespace trainerd::base {

/// Resident memory of this process, including shared memory; 0 if the kernel does not report it.
std::int64_t resident_bytes();

/// Number of processes of this machine that the kernel has killed for want of memory since it started, of the
/// whole machine's or of a control group's; 0 if it does not report that.
std::int64_t out_of_memory_kills(const std::string& vmstat = "/proc/vmstat");

}  // namespace trainerd::base
