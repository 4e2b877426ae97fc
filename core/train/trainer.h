#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/model/model_chunk.h"
#include "core/model/param_store.h"
#include "core/model/parameters.h"
#include "core/train/batch_source.h"
#include "core/train/clocked_groups.h"
#include "core/train/copy_hashes.h"
#include "core/train/grad_hashes.h"
#include "core/train/norm_groups.h"
#include "core/train/optimizer.h"
#include "core/train/rank_page.h"
#include "core/train/rank_schedule.h"
#include "core/train/state_hashes.h"
#include "core/train/step_memory.h"
#include "core/train/step_outcome.h"
#include "core/train/walk_turns.h"
#include "io/records/records.h"
#include "kernels/backend/backend.h"
#include "parallel/layout/layout.h"
#include "parallel/layout/schedule_shape.h"
#include "parallel/schedule/schedule.h"

namespace trainerd::core::train {

/// The requests of this rank. What any rank requests, all ranks do at the same step.
struct StepVote {
  bool stop = false;
  bool checkpoint = false;
  bool memory = false;   ///< take a memory snapshot; not done with a checkpoint, or if some rank has no room
  bool no_room = false;  ///< this rank has no free segment for one
};

/// The results of a step. Equal on all ranks, except `time`, `copy_hashes`, `changed_state`, and `nonfinite`,
/// which only `nonfinite_rank` sets.
struct StepReport {
  /// With loss.dpo: mean over the pairs. Else: cross entropy with the job's label smoothing, as mean over the
  /// global batch's tokens by their loss weights.
  double loss = 0;
  double loss_weight = 0;  ///< sum of the weights; 0: nothing was updated on any rank, and there is no loss
  std::optional<double> z_loss;          ///< with loss.z_loss: that term, not part of `loss`
  std::optional<double> expert_balance;  ///< with loss.expert_balance: the same
  /// By layer, for models with experts: the tokens of the expert with the most, over the mean of all experts.
  std::vector<double> expert_load;
  std::optional<io::PairRewards> rewards;  ///< with loss.dpo: means over the pairs
  double grad_norm = 0;                    ///< before clipping
  /// The norm of each of `Trainer::norm_groups`, at the steps of metrics.grad_norms; else empty.
  std::vector<double> group_norms;
  double learning_rate = 0;
  bool skipped = false;  ///< a value was not finite: nothing was updated on any rank
  /// With precision.loss_scale: the scale that the step's gradients had.
  std::optional<double> loss_scale;
  bool overflow = false;     ///< gradients overflowed at it: nothing was updated, and it goes down
  bool passed_over = false;  ///< StepVerdict::skip: the same, finite or not
  std::int64_t nonfinite_rank =
      0;  ///< if skipped or overflow: first rank with a non-finite gradient; 0 if only the loss is not finite
  std::string nonfinite;  ///< on that rank: its first such tensor, or "loss"
  /// First rank whose device has token ids outside the vocabulary; nothing was updated on any rank.
  std::optional<std::int64_t> outside_rank;
  /// First rank whose experts had not rows enough for the tokens that chose them; the same.
  std::optional<std::int64_t> crowded_rank;
  StepVote vote;  ///< over all ranks
  /// Hashes of `Trainer::copies` before the update, if `hash_copies` requested them; else empty.
  std::vector<std::uint64_t> copy_hashes;
  /// Names of this rank's state (`StateHashes`) that changed between the last update and this one.
  std::vector<std::string> changed_state;
  base::TimeLedger time;  ///< of this device's part of the step
};

/// The error for `what` having token ids outside the vocabulary on this rank's device.
base::DataError outside_error(const std::string& what, std::int64_t vocab);
/// The error for `what` having more tokens for a rank's experts than these have rows for.
base::CapacityError crowded_error(const std::string& what, const parallel::ParallelOptions& options);

/// Number of tokens that count in the loss; none if all `tokens` of the global batch do.
inline std::optional<std::int64_t> counted_tokens(const StepReport& report, std::int64_t tokens) {
  const auto counted = static_cast<std::int64_t>(report.loss_weight);
  return counted == tokens ? std::nullopt : std::optional(counted);
}

/// Called with the next actions of a pass over the batch: one computation, or transfers that are issued
/// together; empty at the end of the pass.
using ObserveActions = std::function<void(std::span<const parallel::Action>)>;

/// One rank's training: parameters, the step and its executor. The same code runs on a real backend and on
/// the meta backend. All memory comes from `memory`, at construction or inside its regions; steps allocate no
/// buffers.
class Trainer {
 public:
  Trainer(const job::JobSpec& job, const parallel::Layout& layout, kernels::Backend& backend,
          const RankGroups& groups, StepMemory& memory);

  /// Initialises constant tables, then parameters from the seed: for a new run.
  void initialise();
  /// Initialises constant tables, and adapters from the seed; the weights are loaded. Call `publish` after
  /// that.
  void initialise_adapters();
  /// Initialises constant tables and the loss scale only; the parameters are loaded. Call `publish` after
  /// that.
  void initialise_tables();
  /// Sets the averages of weights to the loaded weights, if no averages were loaded.
  void begin_averages() { params_.begin_averages(*compute_); }
  /// Selects what evaluations read until the next call. Call it between steps. See ParamStore::read.
  void read(model::ParamStore::Read which) { params_.read(*compute_, which); }
  /// Call it after parameters were loaded into the master weights.
  void publish();

  /// Issues step `step`, from 1, to the device. Reads the samples of this rank's part of the global batch. At
  /// most StepClock::kMaxSteps may be launched and not reported: a host that reports one step late leaves the
  /// device no gap. `before_update` is called when forward and backward are issued and the update is not:
  /// until then nothing writes the master weights and optimizer states. Its time is charged to checkpoints.
  /// If a step is computed again, it is called each time.
  void launch(std::int64_t step, BatchSource& batches, const StepVote& vote,
              const std::function<void()>& before_update = {});
  /// Waits for the oldest launched step and returns its report.
  StepReport report();
  StepReport step(std::int64_t step, BatchSource& batches, const StepVote& vote) {
    launch(step, batches, vote);
    return report();
  }
  struct Evaluation {
    double loss = 0;                              ///< mean of the global batch, by its loss weights
    double loss_weight = 0;                       ///< sum of the weights; 0: there is no loss
    std::optional<io::PairRewards> rewards = {};  ///< as in StepReport
    bool stop = false;                            ///< some rank asks to stop
  };
  /// What this rank makes of a step's batch alone, bit by bit: the same on ranks that hold the same part of
  /// the model and get the same batch.
  struct OwnResult {
    std::uint64_t loss = 0;       ///< bits of the sum that this rank adds
    std::uint64_t gradients = 0;  ///< hash of its gradients before their sum over replicas
  };
  /// Forward, backward and the sums over ranks of a step without dropout, of which nothing is kept: no update
  /// follows. No step is on the way. `batches` are of `alone_shape`.
  OwnResult compute_alone(BatchSource& batches);
  /// The shape of its microbatches, of replica 0: few tokens, so that a start costs little.
  BatchShape alone_shape() const;

  /// One global batch of the same shape; changes nothing. No step is on the way. `stop`: this rank asks to
  /// stop.
  Evaluation evaluate(BatchSource& batches, bool stop = false);

  struct SampleLosses {
    /// By sample of the global batch: weighted sum over its tokens. For pairs two numbers each: the
    /// log-probabilities of the chosen and of the rejected answer.
    std::vector<double> loss;
    bool stop = false;
  };
  /// Like `evaluate`, for a job with `evaluate.choices` or `loss.dpo`.
  SampleLosses sample_losses(BatchSource& batches, bool stop = false);
  /// Replaces each value by its sum over all ranks. For such a job, between steps.
  void sum_over_ranks(std::span<double> values);

  /// Whether the next steps record a trace, and the trace of the step reported last: see StepClock.
  void keep_trace(bool on) { clock_.keep_trace(on); }
  const std::vector<io::TraceSlice>& trace() const { return clock_.trace(); }

  /// State that other ranks hold too; null without supervise.hash_every.
  const CopyHashes* copies() const { return copies_ ? &*copies_ : nullptr; }
  /// Whether the next steps hash `copies`, between backward and update.
  void hash_copies(bool on) { hashes_copies_ = on && copies_; }
  /// Hashes them now; no step may be launched.
  std::vector<std::uint64_t> hash_copies_now();

  /// Call it when the state is loaded and only updates will change it. With supervise.hash_every each step
  /// then checks that (`StepReport::changed_state`).
  void begin_state_check();

  /// From the next step on, `judge` decides on the steps that it judges, after their gradients and before the
  /// update; the host waits for the device there. `judge` must outlive this. For a job that verifies steps or
  /// has a policy for spikes.
  void judge_by(Judge& judge) { judge_ = &judge; }
  /// Names for `hash_gradients`; null if the job judges no steps.
  const GradHashes* gradients() const { return grad_hashes_ ? &*grad_hashes_ : nullptr; }
  /// Call it inside a judge: hashes of the reduced gradients of the computation being judged.
  std::vector<std::uint64_t> hash_gradients();
  /// Call it inside a judge: elementwise maximum over all ranks; at most one value per rank.
  std::vector<float> most_of_ranks(const std::vector<float>& values);

  /// Calls `observe` from the next pass on.
  void observe_actions(ObserveActions observe) { observe_ = std::move(observe); }

  /// Calls `observe` for each message that the rank sends from now on.
  void observe_sends(ObserveSends observe) { sends_ = std::move(observe); }

  /// Shows activities on `page` from now on; `page` must outlive this.
  void show_on(RankPage& page) { page_ = &page; }

  /// The shape of this rank's microbatches, and the requests of a pass over `global` sequences, in order.
  BatchShape batch_shape() const;
  std::vector<BatchRequest> batch_requests(parallel::Pass pass, std::int64_t global) const;
  std::vector<BatchRequest> batch_requests(parallel::Pass pass) const {
    return batch_requests(pass, job_.batch.global);
  }
  /// Sequences of step `step`, from 1.
  std::int64_t batch_of_step(std::int64_t step) const { return job_.batch.of_step(step); }

  /// Names of the norms by group; empty if none are computed.
  const std::vector<std::string>& norm_groups() const { return norm_groups_.names(); }

  model::ParamStore& params() { return params_; }
  kernels::Backend& backend() { return backend_; }
  kernels::Stream& stream() { return *compute_; }

 private:
  /// One chunk of the model on this rank.
  struct Chunk {
    model::ModelChunk model;
    /// [T, D]: what is sent on, and sent back; undefined if nothing is. While one buffer is being sent, the
    /// other is written.
    kernels::Tensor out, din, other_out, other_din;
  };
  /// Device values from which the report of one step is read.
  struct ReportSlot {
    std::int64_t step = 0;
    std::int64_t loss_terms = 0;  ///< JobSpec::loss_terms of its batch
    double lr = 0;
    /// f64 [3]: square sum of the gradients (in an evaluation: votes to stop), the loss, its weights. With a
    /// z-loss, and with a balance loss of experts, one more each: that term. For pairs three more:
    /// kernels::PreferenceLoss::rewards.
    kernels::Tensor totals;
    kernels::Tensor copy_hashes;  ///< i32 [copies, 2]; undefined if unused
    bool hashed = false;
    kernels::Tensor state_before, state_after;  ///< i32 [states, 2]: around the update; undefined if unused
    kernels::Tensor group_sums;  ///< f64 [groups]: square sums of the gradients by group; undefined if unused
    kernels::Tensor control;
    kernels::Tensor votes;          ///< f32: `VoteValues`
    kernels::Tensor expert_counts;  ///< model::Batch::expert_counts; undefined if the MLPs are dense
  };
  /// Values that ranks combine by a maximum. A rank r is encoded as ranks - r, so the first rank wins.
  struct VoteValues {
    float stop = 0;
    float save = 0;       ///< `SaveVote`
    float outside = 0;    ///< first rank with token ids outside the vocabulary
    float nonfinite = 0;  ///< first rank with non-finite gradients
    float crowded = 0;    ///< first rank whose experts had not enough rows
  };
  float as_vote(std::int64_t rank) const { return static_cast<float>(layout_.grid.ranks() - rank); }
  std::int64_t rank_of_vote(float vote) const {
    return layout_.grid.ranks() - static_cast<std::int64_t>(vote);
  }
  /// Sends and receives under way, and the chunk tensors that they read or write.
  struct Flight {
    std::unique_ptr<parallel::Work> work;
    std::vector<const std::byte*> tensors;
  };

  void take_persistent(kernels::Arena& persistent);
  parallel::ContextParallel context_parallel() const;
  parallel::ExpertParallel expert_parallel() const;
  void make_chunks(kernels::Arena& persistent);
  void make_frames();
  void add_partial_sums();
  void add_shared_adapter_sums(const model::AdapterParams& adapter, const model::LocalSizes& local);
  // The executor (executor.cpp).
  void run(parallel::ParamGatherer::Pass pass, BatchSource& batches);
  /// A chunk's walk for one microbatch, with what it reads and writes.
  struct OpenWalk {
    parallel::Action action;
    Chunk& chunk;
    model::Frame& frame;
    kernels::Tensor out, din, dout;
    model::LossTarget loss;
  };
  void compute(const PassSchedule& schedule, std::span<const parallel::Action> actions, BatchSource& batches);
  OpenWalk open_walk(const PassSchedule& schedule, const parallel::Action& action, BatchSource& batches);
  void walk(const OpenWalk& walk);
  void close_walk(const OpenWalk& walk);
  void show(const parallel::Action& action);
  model::LossTarget loss_target(const Chunk& chunk, parallel::ActionKind kind) const;
  void transfer(const PassSchedule& schedule, std::span<const parallel::Action> actions);
  void land(const std::byte* tensor);
  int slot_of(const PassSchedule& schedule, const parallel::Action& action, SlotClass slot_class) const;
  kernels::Tensor received(const PassSchedule& schedule, const parallel::Action& action,
                           SlotClass slot_class);
  model::Frame& frame_of(const PassSchedule& schedule, const parallel::Action& action);
  model::Frame& open_frame(const PassSchedule& schedule, const parallel::Action& action,
                           BatchSource& batches);
  BatchRequest request_of(const parallel::Action& action) const;
  void take_batch(model::Frame& frame, const parallel::Action& action, BatchSource& batches);
  /// Rows of activations between layers: all tokens of a microbatch, or this tp rank's share.
  std::int64_t flow_rows() const;
  /// The rows of this pass of a tensor whose rows are those of a training pass; undefined stays undefined.
  kernels::Tensor of_pass(const kernels::Tensor& x, std::int64_t rows) const;
  int local(int chunk) const { return chunk / static_cast<int>(layout_.options.pp); }
  /// True if chunk `chunk` + 1 is on this rank, too, and reads the output of `chunk` in place.
  bool stays_on_rank(int chunk) const {
    return parallel::schedule_shape(layout_.options, 1).stays_on_rank(chunk);
  }
  bool adds_loss(const Chunk& chunk) const;
  std::optional<parallel::PreferenceTarget> preference_of(const Chunk& chunk) const;
  void add_loss(const Chunk& chunk, const model::LossTarget& loss);
  void add_sample_losses(std::int64_t microbatch);

  void use_batch(std::int64_t global);
  void make_gradients(const ReportSlot& slot, BatchSource& batches, const StepVote& vote);
  void control(const ReportSlot& slot);
  void update(const ReportSlot& slot);
  // Loss scaling (trainer_scale.cpp).
  void begin_loss_scale();
  void update_loss_scale(const ReportSlot& slot);
  // Judged steps (trainer_judge.cpp).
  void take_judging(kernels::Arena& persistent);
  void read_own_loss(const kernels::Tensor& loss);
  StepVerdict judge_computation(const ReportSlot& slot);
  StepOutcome outcome(const ReportSlot& slot);
  void pass_over(const ReportSlot& slot);
  void name_nonfinite(const kernels::StepControlValues& values, float voted, std::int64_t& rank,
                      std::string& name) const;
  void sum_groups(const ReportSlot& slot);
  bool norms_groups(std::int64_t step) const;
  kernels::Tensor balance_sum() const;
  void sum_expert_counts(const ReportSlot& slot);
  std::vector<double> read_expert_load(const ReportSlot& slot);
  std::vector<double> read_group_norms(const ReportSlot& slot, double weight, double loss_scale);
  // Hashes of the rank's state (trainer_hashes.cpp).
  std::vector<std::uint64_t> read_hashes(kernels::Stream& stream, const kernels::Tensor& hashes_C2);
  std::vector<std::string> changed_state(kernels::Stream& stream, const ReportSlot& slot);
  struct MeanLoss {
    double loss = 0, weight = 0, z_loss = 0, expert_balance = 0;
    std::optional<io::PairRewards> rewards;
  };
  MeanLoss read_loss(kernels::Stream& stream, const ReportSlot& slot);

  job::JobSpec job_;
  parallel::Layout layout_;
  parallel::ProcessGrid::Coordinate place_;
  kernels::Backend& backend_;
  StepClock clock_;
  RankPage own_page_;  ///< used if the agent gave none
  RankPage* page_ = &own_page_;
  ObserveSends sends_;
  RankGroups groups_;  ///< wrapped for `clock_`
  StepMemory& memory_;
  std::int64_t microbatches_;  ///< of the step under way
  BatchShape shape_;           ///< of the microbatches of the pass under way
  bool alone_ = false;         ///< that pass is `compute_alone`
  float grad_scale_;  ///< 1 / tokens (or pairs) of the step's batch, until `update` knows how many count
  std::optional<std::uint64_t> dropout_key_;  ///< for the step being launched
  double loss_weight_ = 0;                    ///< of the pass's microbatches whose loss this rank adds
  std::unique_ptr<kernels::Stream> compute_;
  std::unique_ptr<kernels::Stream> reports_;  ///< reads back results of completed steps
  model::DeclaredParams declared_;
  model::ParamStore params_;
  std::optional<model::FlowOffload> flows_;  ///< with ParallelOptions::offload_activations
  std::vector<Chunk> chunks_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;  ///< of trainable views
  /// The steps' passes, by their number of microbatches.
  std::map<std::int64_t, PassSchedule> train_;
  PassSchedule evaluate_;
  /// By pool of chunks, and slot of the longest lifetime (forward to weight gradient).
  std::vector<std::vector<model::Frame>> frames_;
  std::vector<Flight> flights_;
  bool takes_turns_;  ///< ParallelOptions::takes_turns
  WalkTurns turns_;
  ObserveActions observe_;

  model::RopeTables rope_;
  kernels::Tensor loss_T_, z_loss_T_, square_sums_, nonfinite_;
  kernels::Tensor sample_sums_;        ///< f64: losses of some samples; for a job with choices or pairs
  kernels::Tensor logps_P2_;           ///< f64, for a microbatch's pairs
  std::vector<double> sample_losses_;  ///< of the current pass; empty: not requested
  std::array<ReportSlot, StepClock::kMaxSteps> slots_;
  int slot_ = 0;  ///< of the step being launched, and of evaluations
  /// The runs of all views that the norm is computed from.
  struct NormRun {
    const model::ParamView* view;
    const model::StateRun* run;
  };
  std::vector<NormRun> norm_runs_;
  std::vector<std::int64_t> first_block_;  ///< by norm run
  NormGroups norm_groups_;
  std::optional<CopyHashes> copies_;
  bool hashes_copies_ = false;
  std::optional<StateHashes> state_hashes_;  ///< with supervise.hash_every
  std::vector<std::uint64_t> state_after_;   ///< of the step reported last; empty: nothing to compare with
  Judge* judge_ = nullptr;
  bool judged_ = false;                     ///< the step being launched is judged
  std::optional<GradHashes> grad_hashes_;   ///< of a job that judges steps
  kernels::Tensor grad_hash_values_;        ///< i32 [gradients, 2]
  kernels::Tensor judge_votes_;             ///< f32
  double own_loss_ = 0;                     ///< of the computation being judged
  std::vector<std::int32_t> group_of_run_;  ///< by norm run: its group; empty without groups
  std::vector<std::byte> staging_;          ///< a microbatch's values, one array after the other
};

}  // namespace trainerd::core::train
