#pragma once

#include <cstdint>

#include "io/interval.h"

namespace trainerd::io {

struct CheckpointOptions {
  Interval every{.seconds = 600};  ///< never: only at the end and when stopped
  std::int64_t keep = 3;  ///< complete checkpoints kept, newest first
  bool async = true;      ///< training goes on while the agent writes

  bool operator==(const CheckpointOptions&) const = default;
};

}  // namespace trainerd::io
