#pragma once

#include <array>
#include <cstdint>
#include <functional>
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
#include "io/records/records.h"
#include "kernels/backend/backend.h"
#include "parallel/layout/layout.h"
#include "parallel/schedule/schedule.h"

namespace trainerd::core::train {

/// What this rank asks for; what any rank asks for, all do at the same step.
struct StepVote {
  bool stop = false;
  bool checkpoint = false;
  bool memory =
      false;  ///< a snapshot that stays in memory; not where a rank has no room, or with a checkpoint
  bool no_room = false;  ///< this rank has none for such a snapshot
};

/// What a step gives back, the same on every rank but for `time`, and `nonfinite` is for `nonfinite_rank` to
/// say.
struct StepReport {
  /// With loss.dpo: the mean over the pairs. Else cross entropy with the job's label smoothing: mean over the
  /// global batch's tokens, by their loss weights.
  double loss = 0;
  double loss_weight = 0;        ///< sum of these; 0: nothing was updated on any rank, and there is no loss
  std::optional<double> z_loss;  ///< with loss.z_loss: that term, which `loss` does not contain
  std::optional<io::PairRewards> rewards;  ///< with loss.dpo: means over the pairs
  double grad_norm = 0;                    ///< before clipping
  /// The same of each of `Trainer::norm_groups`, at the steps of metrics.grad_norms; else empty.
  std::vector<double> group_norms;
  double learning_rate = 0;
  bool skipped = false;      ///< not finite: nothing was updated on any rank
  bool passed_over = false;  ///< by `StepVerdict::skip`: likewise, finite or not
  std::int64_t nonfinite_rank =
      0;  ///< when skipped: the first rank with a gradient that is not finite; 0 if only the loss is not
  std::string nonfinite;  ///< on that rank: its first such tensor, or "loss"
  /// The first rank whose device has token ids outside the vocabulary: nothing was updated on any rank.
  std::optional<std::int64_t> outside_rank;
  StepVote vote;  ///< of all ranks
  /// Of `Trainer::copies`, as they were before the update, if `hash_copies` asked for them; else empty.
  std::vector<std::uint64_t> copy_hashes;
  /// Of this rank's state (`StateHashes`): what was not before the update as the update before had left it.
  std::vector<std::string> changed_state;
  base::TimeLedger time;  ///< of this device's part of the step
};

/// `what` had token ids outside the vocabulary on this rank's device.
base::DataError outside_error(const std::string& what, std::int64_t vocab);

/// Tokens that count in the loss, where not all `tokens` of the global batch do.
inline std::optional<std::int64_t> counted_tokens(const StepReport& report, std::int64_t tokens) {
  const auto counted = static_cast<std::int64_t>(report.loss_weight);
  return counted == tokens ? std::nullopt : std::optional(counted);
}

/// Told what a pass over the batch does next: one computation, or transfers that go out together; nothing
/// when it is over.
using ObserveActions = std::function<void(std::span<const parallel::Action>)>;

/// One rank's training: parameters, the step and its executor. The same code runs on a real backend and in
/// the meta world. All memory comes from `memory` at construction or inside its regions; a step allocates
/// nothing of any size.
class Trainer {
 public:
  Trainer(const job::JobSpec& job, const parallel::Layout& layout, kernels::Backend& backend,
          const RankGroups& groups, StepMemory& memory);

  /// Constant tables, then parameters from the seed: before the first step of a new run.
  void initialise();
  /// Constant tables, and adapters from the seed, for weights that are loaded: call `publish` after loading.
  void initialise_adapters();
  /// Constant tables alone, for parameters that are loaded: call `publish` after loading.
  void initialise_tables();
  /// Averages of weights begin as the weights that were loaded, where these come without averages.
  void begin_averages() { params_.begin_averages(*compute_); }
  /// What evaluations are of until the next call: between steps. See ParamStore::read.
  void read(model::ParamStore::Read which) { params_.read(*compute_, which); }
  /// The parameters were loaded into the master weights.
  void publish() { params_.publish(*compute_); }

  /// Puts step `step`, from 1, on the device. Reads the samples of this rank's part of the global batch. At
  /// most StepClock::kMaxSteps are on the way: a host that reports one step late leaves the device no gap
  /// between two.
  /// `before_update`, when given, is called when forward and backward are on the device and the update is
  /// not: until then nothing writes the master weights and the optimizer's states. What it takes is charged
  /// to checkpoints. Of a step that is computed again it is called each time.
  void launch(std::int64_t step, BatchSource& batches, const StepVote& vote,
              const std::function<void()>& before_update = {});
  /// The report of the oldest step on its way: waits until it is over.
  StepReport report();
  StepReport step(std::int64_t step, BatchSource& batches, const StepVote& vote) {
    launch(step, batches, vote);
    return report();
  }
  struct Evaluation {
    double loss = 0;                              ///< mean of the global batch, by its loss weights
    double loss_weight = 0;                       ///< sum of these; 0: there is no loss
    std::optional<io::PairRewards> rewards = {};  ///< as of a step
    bool stop = false;                            ///< any rank asks for it
  };
  /// What this rank makes of a step's batch alone, bit by bit: the same on ranks that hold the same part of
  /// the model and get the same batch.
  struct OwnResult {
    std::uint64_t loss = 0;       ///< bits of the sum that this rank adds
    std::uint64_t gradients = 0;  ///< of what it gives to the data-parallel sums, in their order
  };
  /// Forward, backward and the sums over ranks of a step without dropout, of which nothing is kept: no update
  /// follows. No step is on the way.
  OwnResult compute_alone(BatchSource& batches);

  /// One global batch of the same shape; changes nothing. No step is on the way. `stop`: this rank asks to
  /// stop.
  Evaluation evaluate(BatchSource& batches, bool stop = false);

  struct SampleLosses {
    /// By sample of the global batch: the sum over its tokens, by their weights. Of pairs two numbers each:
    /// the log-probabilities of the chosen and of the rejected answer.
    std::vector<double> loss;
    bool stop = false;
  };
  /// As `evaluate`, of a job with `evaluate.choices` or `loss.dpo`.
  SampleLosses sample_losses(BatchSource& batches, bool stop = false);
  /// Each value becomes its sum over all ranks: of such a job, between steps.
  void sum_over_ranks(std::span<double> values);

  /// Whether the next steps leave a trace, and that of the step reported last: see StepClock.
  void keep_trace(bool on) { clock_.keep_trace(on); }
  const std::vector<io::TraceSlice>& trace() const { return clock_.trace(); }

  /// What other ranks hold too, of a job with supervise.hash_every; else null.
  const CopyHashes* copies() const { return copies_ ? &*copies_ : nullptr; }
  /// Whether the next steps hash that, between backward and update.
  void hash_copies(bool on) { hashes_copies_ = on && copies_; }
  /// The same now: no step is on the way.
  std::vector<std::uint64_t> hash_copies_now();

  /// The state is loaded, and nothing but updates changes it from now on: of a job with supervise.hash_every
  /// each step checks that (`StepReport::changed_state`).
  void begin_state_check();

  /// From the next step on `judge`, which outlives it, says what becomes of the steps that it judges when
  /// their gradients are made, and before the update: the host waits for the device there. Of a job that
  /// verifies steps or has a policy for spikes.
  void judge_by(Judge& judge) { judge_ = &judge; }
  /// Names of `hash_gradients`; null: the job judges no steps.
  const GradHashes* gradients() const { return grad_hashes_ ? &*grad_hashes_ : nullptr; }
  /// Inside a judge: of the reduced gradients of the computation that is judged.
  std::vector<std::uint64_t> hash_gradients();
  /// Inside a judge: each value becomes the largest of all ranks. At most one for each rank.
  std::vector<float> most_of_ranks(const std::vector<float>& values);

  /// For records of what a step does: `observe` is called from the next pass on.
  void observe_actions(ObserveActions observe) { observe_ = std::move(observe); }

  /// `observe` sees each message that the rank sends from now on.
  void observe_sends(ObserveSends observe) { sends_ = std::move(observe); }

  /// Where what it does is shown from now on; outlives it.
  void show_on(RankPage& page) { page_ = &page; }

  /// What this rank makes its microbatches from, and which of them a pass asks for, in order.
  BatchShape batch_shape() const;
  std::vector<BatchRequest> batch_requests(parallel::Pass pass) const;

  /// Of the norms by group; empty: none are made.
  const std::vector<std::string>& norm_groups() const { return norm_groups_.names(); }

  model::ParamStore& params() { return params_; }
  kernels::Backend& backend() { return backend_; }
  kernels::Stream& stream() { return *compute_; }

 private:
  /// One chunk of the model on this rank.
  struct Chunk {
    model::ModelChunk model;
    /// [T, D]: what is sent on, and back; undefined where nothing is. While one is on its way the other is
    /// written.
    kernels::Tensor out, din, other_out, other_din;
  };
  /// What the report of one step is read from.
  struct ReportSlot {
    std::int64_t step = 0;
    double lr = 0;
    /// f64 [3]: the gradients' square sum, or of an evaluation the votes to stop; the loss; its weights. With
    /// a z-loss a fourth: that term. Of pairs three more: kernels::PreferenceLoss::rewards.
    kernels::Tensor totals;
    kernels::Tensor copy_hashes;  ///< i32 [copies, 2]; undefined without
    bool hashed = false;
    kernels::Tensor state_before, state_after;  ///< i32 [states, 2]: around the update; undefined without
    kernels::Tensor group_sums;  ///< f64 [groups]: the gradients' square sums by group; undefined without
    kernels::Tensor control;
    kernels::Tensor votes;  ///< f32: `VoteValues`
  };
  /// What ranks tell each other by a maximum. A rank stands as ranks - its number.
  struct VoteValues {
    float stop = 0;
    float save = 0;       ///< `SaveVote`
    float outside = 0;    ///< the first rank that has token ids outside the vocabulary
    float nonfinite = 0;  ///< the first rank whose gradients are not finite
  };
  float as_vote(std::int64_t rank) const { return static_cast<float>(layout_.grid.ranks() - rank); }
  std::int64_t rank_of_vote(float vote) const {
    return layout_.grid.ranks() - static_cast<std::int64_t>(vote);
  }
  /// Sends and receives on their way, and what of each chunk they read or write.
  struct Flight {
    std::unique_ptr<parallel::Work> work;
    std::vector<const std::byte*> tensors;
  };

  void take_persistent(kernels::Arena& persistent);
  void make_chunks(kernels::Arena& persistent);
  void make_frames();
  void add_partial_sums();
  void add_shared_adapter_sums(const model::AdapterParams& adapter, const model::LocalSizes& local);
  // The executor (executor.cpp).
  void run(parallel::ParamGatherer::Pass pass, BatchSource& batches);
  void compute(const PassSchedule& schedule, const parallel::Action& action, BatchSource& batches);
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
  int local(int chunk) const { return chunk / static_cast<int>(layout_.options.pp); }
  bool adds_loss(const Chunk& chunk) const;
  std::optional<parallel::PreferenceTarget> preference_of(const Chunk& chunk) const;
  void add_loss(const Chunk& chunk, const model::LossTarget& loss);
  void add_sample_losses(std::int64_t microbatch);

  void make_gradients(const ReportSlot& slot, BatchSource& batches, const StepVote& vote);
  void control(const ReportSlot& slot);
  void update(const ReportSlot& slot);
  // Steps that are judged (trainer_judge.cpp).
  void take_judging(kernels::Arena& persistent);
  void read_own_loss(const kernels::Tensor& loss);
  StepVerdict judge_computation(const ReportSlot& slot);
  StepOutcome outcome(const ReportSlot& slot);
  void pass_over(const ReportSlot& slot);
  void name_nonfinite(const kernels::StepControlValues& values, float voted, std::int64_t& rank,
                      std::string& name) const;
  void sum_groups(const ReportSlot& slot);
  bool norms_groups(std::int64_t step) const;
  std::vector<double> read_group_norms(const ReportSlot& slot, double weight);
  // Hashes of what the rank holds (trainer_hashes.cpp).
  std::vector<std::uint64_t> read_hashes(kernels::Stream& stream, const kernels::Tensor& hashes_C2);
  std::vector<std::string> changed_state(kernels::Stream& stream, const ReportSlot& slot);
  struct MeanLoss {
    double loss = 0, weight = 0, z_loss = 0;
    std::optional<io::PairRewards> rewards;
  };
  MeanLoss read_loss(kernels::Stream& stream, const ReportSlot& slot);

  job::JobSpec job_;
  parallel::Layout layout_;
  parallel::ProcessGrid::Coordinate place_;
  kernels::Backend& backend_;
  StepClock clock_;
  RankPage own_page_;  ///< where the agent gave none
  RankPage* page_ = &own_page_;
  ObserveSends sends_;
  RankGroups groups_;  ///< as `clock_` sees them
  StepMemory& memory_;
  std::int64_t microbatches_;
  std::int64_t tokens_;     ///< of one microbatch
  std::int64_t flow_rows_;  ///< of what flows between layers: all tokens, or this tp rank's share
  float grad_scale_;        ///< 1 / tokens, or pairs, of the global batch, until `update` knows how many of
                            ///< them count
  std::optional<std::uint64_t> dropout_key_;  ///< of the step that is being put on the device
  double loss_weight_ = 0;                    ///< of the pass's microbatches whose loss this rank adds
  std::unique_ptr<kernels::Stream> compute_;
  std::unique_ptr<kernels::Stream> reports_;  ///< what comes up from a step that is over
  model::DeclaredParams declared_;
  model::ParamStore params_;
  std::vector<Chunk> chunks_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;  ///< of trainable views
  PassSchedule train_, evaluate_;
  /// By pool of chunks and slot of the longest lifetime, forward to weight gradient.
  std::vector<std::vector<model::Frame>> frames_;
  std::vector<Flight> flights_;
  ObserveActions observe_;

  model::RopeTables rope_;
  kernels::Tensor loss_T_, z_loss_T_, square_sums_, nonfinite_;
  kernels::Tensor sample_sums_;  ///< f64: losses of some samples at a time; of a job with choices or pairs
  kernels::Tensor logps_P2_;     ///< f64, of a microbatch's pairs
  std::vector<double> sample_losses_;  ///< of the pass under way; empty: they are not asked for
  std::array<ReportSlot, StepClock::kMaxSteps> slots_;
  int slot_ = 0;  ///< of the step that is being put on the device, and of evaluations
  /// Runs of all views that the norm is made of.
  struct NormRun {
    const model::ParamView* view;
    const model::StateRun* run;
  };
  std::vector<NormRun> norm_runs_;
  std::vector<std::int64_t> first_block_;  ///< by norm run
  NormGroups norm_groups_;
  std::optional<CopyHashes> copies_;
  bool hashes_copies_ = false;
  std::optional<StateHashes> state_hashes_;  ///< of a job with supervise.hash_every
  std::vector<std::uint64_t> state_after_;   ///< the step reported last; empty: nothing to compare with
  Judge* judge_ = nullptr;
  bool judged_ = false;                     ///< the step that is being put on the device
  std::optional<GradHashes> grad_hashes_;   ///< of a job that judges steps
  kernels::Tensor grad_hash_values_;        ///< i32 [gradients, 2]
  kernels::Tensor judge_votes_;             ///< f32
  double own_loss_ = 0;                     ///< of the computation that is judged
  std::vector<std::int32_t> group_of_run_;  ///< of those; empty without groups
  std::vector<std::byte> staging_;          ///< a microbatch's values, one array after the other
};

}  // namespace trainerd::core::train
