#pragma once

#include <cstdint>

namespace trainerd::io {

struct CheckpointOptions {
  std::int64_t every = 0;    ///< steps; 0: only at the end and when stopped
  std::int64_t keep = 3;     ///< complete checkpoints kept, newest first
  bool async = true;         ///< training goes on while the agent writes

  bool operator==(const CheckpointOptions&) const = default;
};

}  // namespace trainerd::io
