#include "parallel/schedule/schedule.h"

#include "kernels/base/error.h"

namespace trainerd::parallel {

std::vector<Action> make_schedule(ScheduleKind kind, int stages, int microbatches, Pass pass) {
  base::check(stages == 1 && kind == ScheduleKind::one_f_one_b, "one stage and 1f1b are the only pipeline so far");
  base::check(microbatches >= 1, "a step has at least one microbatch");
  std::vector<Action> actions;
  for (int m = 0; m < microbatches; ++m) {
    if (pass == Pass::evaluate) {
      actions.push_back({ActionKind::forward_only, 0, m});
      continue;
    }
    actions.push_back({ActionKind::forward, 0, m});
    actions.push_back({ActionKind::backward, 0, m});
  }
  if (pass == Pass::train) actions.push_back({ActionKind::reduce_grads, 0, microbatches - 1});
  return actions;
}

}  // namespace trainerd::parallel
