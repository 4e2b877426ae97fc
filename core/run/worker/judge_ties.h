#pragma once

#include <cstdint>
#include <functional>

#include "core/run/worker/step_judge.h"
#include "core/train/trainer.h"

namespace trainerd::core::run {

/// The worker's functions for its judge.
struct JudgeWorker {
  std::function<void(const WorkerMessage&)> send;
  std::function<void()> await;           ///< waits for a message of the agent
  std::function<void()> require_alive;   ///< JudgeTies::require_alive
  std::function<std::int64_t()> cursor;  ///< first sample after the current step's
};

/// Connects a judge with this rank's trainer, which must outlive it, and with the agent.
JudgeTies judge_ties(train::Trainer& trainer, JudgeWorker worker);

}  // namespace trainerd::core::run
