#include "core/plan/replay/replay.h"

#include <memory>
#include <utility>
#include <vector>

#include "core/plan/replay/simulation.h"
#include "core/plan/replay/timed_rank.h"

namespace trainerd::core::plan {

struct Replays::Compiled {
  ReplayInput in;
  std::vector<std::vector<parallel::Action>> lists;
  std::vector<TimedRank> ranks;
  MessageCosts messages;
};

Replays::Replays(ReplayInput input) {
  auto compiled = std::make_unique<Compiled>();
  compiled->lists = parallel::make_schedules(input.schedule);
  for (int r = 0; r < input.schedule.stages; ++r) {
    compiled->ranks.push_back(timed_rank(input, r));
    auto& costs = compiled->messages.emplace_back();
    for (const int peer : neighbours(input.schedule, r))
      costs[is_next(input.schedule, r, peer) ? 0 : 1] = input.message_cost(r, peer);
  }
  compiled->in = std::move(input);
  compiled_ = std::move(compiled);
}

Replays::~Replays() = default;

Replay Replays::run(const ReplayOptions& options) const {
  return ReplaySimulation(compiled_->in, compiled_->lists, compiled_->ranks, compiled_->messages, options)
      .run();
}

Replay replay(const ReplayInput& input) { return Replays(input).run(); }

}  // namespace trainerd::core::plan
