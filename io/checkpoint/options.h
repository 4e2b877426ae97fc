#pragma once

#include <cstdint>

#include "io/text/interval.h"

namespace trainerd::io {

struct CheckpointOptions {
  Interval every{.seconds = 600};  ///< never: only at the end and when stopped
  std::int64_t keep = 3;           ///< complete checkpoints kept, newest first
  bool async = true;               ///< training goes on while the agent writes
  Interval memory{};  ///< between snapshots that stay in memory; never: those of checkpoints alone
  double give_up_seconds =
      3600;  ///< without a checkpoint that could be written, since the first failure: the run ends

  bool operator==(const CheckpointOptions&) const = default;
};

}  // namespace trainerd::io
