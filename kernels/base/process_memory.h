#pragma once

#include <cstdint>

namespace trainerd::base {

/// Resident memory of this process, including shared memory; 0 if the kernel does not report it.
std::int64_t resident_bytes();

}  // namespace trainerd::base
