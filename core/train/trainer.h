#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/model/param_store.h"
#include "core/model/stage.h"
#include "core/spec/spec.h"
#include "core/train/step_clock.h"
#include "core/train/step_memory.h"
#include "io/records.h"
#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "parallel/grad_reducer.h"
#include "parallel/layout.h"
#include "parallel/schedule/schedule.h"

namespace trainerd::core {

/// What this rank asks for; what any rank asks for, all do at the same step.
struct StepVote {
  bool stop = false;
  bool checkpoint = false;
};

/// What a step gives back.
struct StepReport {
  double loss = 0;       ///< mean over the global batch's tokens
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  bool skipped = false;  ///< not finite: nothing was updated
  std::string nonfinite; ///< the first tensor whose gradient is not finite, or "loss"; empty when all is well
  StepVote vote;         ///< of all ranks
  io::TimeLedger time;   ///< of the device's part of the step
};

/// The groups that a rank communicates in.
struct Communicators {
  parallel::Communicator& tp;
  parallel::Communicator& dp;
  parallel::Communicator& world;
};

/// Slots that the job's training and evaluation schedules need.
SlotCounts count_slots(const JobSpec& job, const parallel::Layout& layout);

/// One rank's training: parameters, the step and its executor. The same code runs on a real backend and in the meta
/// world. All memory comes from `memory` at construction or inside its regions; a step allocates nothing.
class Trainer {
 public:
  Trainer(const JobSpec& job, const parallel::Layout& layout, kernels::Backend& backend, const Communicators& comms,
          StepMemory& memory);

  /// Samples (of seq_len + 1 tokens) of this rank in one step.
  std::int64_t samples_per_step() const { return microbatches_ * job_.batch.micro; }

  /// Constant tables, then parameters from the seed: before the first step of a new run.
  void initialise();
  /// Constant tables alone, for parameters that are loaded: call `params().publish` after loading.
  void initialise_tables();

  /// Step `step`, from 1. `samples` is [samples_per_step][seq_len + 1] tokens on the host.
  StepReport step(std::int64_t step, std::span<const std::int32_t> samples, const StepVote& vote);
  /// Mean loss of one global batch of the same shape; changes nothing.
  double evaluate(std::span<const std::int32_t> samples);

  ParamStore& params() { return params_; }
  kernels::Backend& backend() { return backend_; }
  kernels::Stream& stream() { return *compute_; }

 private:
  void load_batch(std::span<const std::int32_t> samples);
  void run(const std::vector<parallel::Action>& actions, parallel::Pass pass);
  Frame& open_frame(int microbatch, parallel::Pass pass);
  void close_frame(int microbatch, parallel::Pass pass);
  Batch batch(int microbatch) const;
  void square_sums();
  double read_loss();

  JobSpec job_;
  parallel::Layout layout_;
  kernels::Backend& backend_;
  Communicators comms_;
  StepMemory& memory_;
  std::int64_t microbatches_;
  std::int64_t tokens_;  ///< of one microbatch
  float grad_scale_;     ///< 1 / tokens of the global batch
  std::unique_ptr<kernels::Stream> compute_;
  ParamStore params_;
  std::optional<Stage> stage_;
  std::optional<parallel::GradReducer> reducer_;
  StepClock clock_;

  struct PassPlan {
    std::vector<parallel::Action> actions;
    std::array<parallel::SlotTable, parallel::kLifetimes> slots;
  };
  PassPlan train_, evaluate_;
  std::vector<Frame> frames_;  ///< by microbatch

  // Persistent tensors. [M, T] is microbatch by token.
  kernels::Tensor tokens_MT_, targets_MT_, positions_T_, loss_weight_T_, cu_seqlens_;
  kernels::Tensor loss_T_, loss_sum_, square_sums_, control_, votes_;
  std::vector<std::int64_t> first_block_;
  std::vector<kernels::UpdateRange> update_ranges_;
  std::vector<std::int32_t> staging_;
};

}  // namespace trainerd::core
