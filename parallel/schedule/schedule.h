#pragma once

#include <cstdint>
#include <vector>

#include "parallel/options.h"

namespace trainerd::parallel {

enum class ActionKind : std::uint8_t {
  forward,
  forward_only,  ///< evaluation: nothing is kept
  backward,      ///< input and weight gradients, segment by segment
  reduce_grads,  ///< after the last backward of a step: gradients of the chunk are complete on this rank
};

/// One thing a rank does, on one chunk of the model and one microbatch.
struct Action {
  ActionKind kind = ActionKind::forward;
  int chunk = 0;
  int microbatch = 0;
  bool operator==(const Action&) const = default;
};

enum class Pass : std::uint8_t { train, evaluate };

/// The action list of one rank: a pure function of its arguments, read alike by the executor, the memory plan and the
/// tests. Today for pipelines of one stage; a longer one is refused by the job's own checks before it gets here.
std::vector<Action> make_schedule(ScheduleKind kind, int stages, int microbatches, Pass pass);

}  // namespace trainerd::parallel
