#pragma once

#include <cstdint>
#include <functional>

#include "core/run/worker/step_judge.h"
#include "core/train/trainer.h"

namespace trainerd::core::run {

/// What a worker does for its judge.
struct JudgeWorker {
  std::function<void(const WorkerMessage&)> send;
  std::function<void()> await;           ///< for a message of the agent
  std::function<void()> require_alive;   ///< of JudgeTies
  std::function<std::int64_t()> cursor;  ///< of the samples behind those of the step under way
};

/// Ties a judge to this rank's trainer, which outlives it, and to its agent.
JudgeTies judge_ties(train::Trainer& trainer, JudgeWorker worker);

}  // namespace trainerd::core::run
