#include "core/train/rank_page.h"

namespace trainerd::core::train {

const char* name_of(Activity activity) {
  constexpr std::array<const char*, kActivities> kNames{
      "none",      "load",   "between",    "data_wait", "forward",    "backward", "reduce_grads",
      "optimizer", "report", "evaluation", "snapshot",  "agent_wait", "done",     "meet"};
  return kNames.at(static_cast<std::size_t>(activity));
}

}  // namespace trainerd::core::train
