#pragma once

#include <cstdint>

namespace trainerd::base {

/// Host memory that this process has in use, shared memory included; 0 where the kernel does not say.
std::int64_t resident_bytes();

}  // namespace trainerd::base
