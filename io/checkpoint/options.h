#pragma once

#include <cstdint>

#include "io/text/interval.h"

namespace trainerd::io {

struct CheckpointOptions {
  /// never: only at the end and when stopped; automatic: the optimum from what saves cost and how often the
  /// job fails.
  Interval every{.seconds = 600};
  double mtbf_seconds = 0;  ///< mean time between failures of the job, for `every`; 0: not given
  std::int64_t keep = 3;    ///< complete checkpoints kept, newest first
  bool async = true;        ///< training goes on while the agent writes
  double give_up_seconds =
      3600;  ///< without a checkpoint that could be written, since the first failure: the run ends

  bool operator==(const CheckpointOptions&) const = default;
};

}  // namespace trainerd::io
