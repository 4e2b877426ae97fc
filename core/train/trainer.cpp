#include "core/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/train/kept_batches.h"
#include "core/train/learning_rate.h"
#include "core/train/param_placement.h"
#include "kernels/tensor/rng.h"

namespace trainerd::core::train {
namespace {

using namespace kernels;
using parallel::Axis;
using parallel::Pass;

// Number of sample losses summed over ranks at once. It is independent of the global batch, so that the
// plan's smaller batch takes the same memory.
constexpr std::int64_t kSampleSums = 1024;

/// A rank's vote; the maximum over all ranks decides.
enum class SaveVote : int { none, memory, no_room, checkpoint };

SaveVote save_vote(const StepVote& vote) {
  if (vote.checkpoint) return SaveVote::checkpoint;
  if (vote.no_room) return SaveVote::no_room;
  return vote.memory ? SaveVote::memory : SaveVote::none;
}

std::int64_t at(const parallel::ProcessGrid::Coordinate& place, Axis axis) {
  return place[static_cast<std::size_t>(axis)];
}

}  // namespace

Trainer::Trainer(const job::JobSpec& job, const parallel::Layout& layout, Backend& backend,
                 const RankGroups& groups, StepMemory& memory)
    : job_(job),
      layout_(layout),
      place_(layout.grid.coordinate(groups.rank())),
      backend_(backend),
      clock_(backend, job::uses_nccl(job) ? StepClock::IssueMarks::traced : StepClock::IssueMarks::always),
      groups_(clocked(groups, clock_, page_, sends_)),
      memory_(memory),
      microbatches_(job.microbatches()),
      shape_(batch_shape()),
      grad_scale_(1.0f / static_cast<float>(job.loss_terms_per_step())),
      compute_(backend.make_stream(kComputeStream, &memory.scratch())),
      reports_(backend.make_stream("reports", &memory.scratch())),
      declared_(model::declare_parameters(job.model, parallel::chunks_of(layout, at(place_, Axis::pp)),
                                          shape_.tokens(), layout.options.sequence_parallel,
                                          backend.target().vocab_multiple,
                                          expert_share(layout, groups.rank()))),
      params_(declared_.infos, optimizer_views(job.optimizer, declared_.infos), job.precision,
              param_placement(layout, groups_, microbatches_), backend,
              {.persistent = memory.persistent(),
               .states = job.optimizer.offload ? memory.host() : memory.persistent(),
               .host = memory.host()}),
      takes_turns_(layout.options.takes_turns()),
      norm_groups_(job.metrics.grad_norms, job.model) {
  if (job_.supervise.hash_every > 0) copies_.emplace(params_);
  if (copies_ && copies_->count() == 0) copies_.reset();
  if (job_.supervise.hash_every > 0) state_hashes_.emplace(params_);
  take_persistent(memory.persistent());
  make_chunks(memory.persistent());
  add_partial_sums();
  for (const std::int64_t global : job_.batch.sizes()) {
    const std::int64_t count = job_.microbatches(global);
    if (!train_.contains(count))
      train_[count] =
          pass_schedule(count, layout_, at(place_, Axis::pp), Pass::train, memory_.pool_of_chunk());
  }
  evaluate_ =
      pass_schedule(microbatches_, layout_, at(place_, Axis::pp), Pass::evaluate, memory_.pool_of_chunk());
  make_frames();
  for (std::size_t i = 0; i < params_.views(); ++i)
    if (params_.view(i).trainable())
      optimizers_.push_back(make_optimizer(job_, params_.view(i), groups_.tp(), backend_));
}

void Trainer::take_persistent(Arena& persistent) {
  rope_ = model::take_rope_tables(job_.model, persistent);
  loss_T_ = persistent.take(DType::f32, {shape_.tokens()}, MemoryTerm::batch);
  const bool z_loss = job_.loss.z_loss > 0;
  if (z_loss) z_loss_T_ = persistent.take(DType::f32, {shape_.tokens()}, MemoryTerm::batch);

  if (job_.loss.dpo.on()) logps_P2_ = persistent.take(DType::f64, {job_.batch.micro, 2}, MemoryTerm::batch);
  if (!job_.evaluate.choices.empty() || job_.loss.dpo.on())
    sample_sums_ =
        persistent.take(DType::f64, {std::max(job_.batch.micro, kSampleSums)}, MemoryTerm::control);

  first_block_.push_back(0);
  for (std::size_t i = 0; i < params_.views(); ++i)
    for (const model::StateRun& run : params_.view(i).norm_runs()) {
      norm_runs_.push_back({&params_.view(i), &run});
      first_block_.push_back(first_block_.back() + (run.owned ? norm_blocks(run.count) : 0));
      if (!norm_groups().empty()) group_of_run_.push_back(norm_groups_.of(params_.info(run.id).name));
    }
  square_sums_ =
      persistent.take(DType::f64, {std::max<std::int64_t>(1, first_block_.back())}, MemoryTerm::control);
  nonfinite_ = persistent.take(DType::i32, {1}, MemoryTerm::control);
  for (ReportSlot& slot : slots_) {
    slot.totals = persistent.take(
        DType::f64, {job_.loss.dpo.on() ? 6 : 3 + (z_loss ? 1 : 0) + (job_.loss.expert_balance > 0 ? 1 : 0)},
        MemoryTerm::control);
    if (!norm_groups().empty())
      slot.group_sums =
          persistent.take(DType::f64, {static_cast<std::int64_t>(norm_groups().size())}, MemoryTerm::control);
    if (copies_) slot.copy_hashes = persistent.take(DType::i32, {copies_->count(), 2}, MemoryTerm::control);
    if (state_hashes_)
      for (Tensor* hashes : {&slot.state_before, &slot.state_after})
        *hashes = persistent.take(DType::i32, {state_hashes_->count(), 2}, MemoryTerm::control);
    slot.control = persistent.take(DType::u8, {static_cast<std::int64_t>(sizeof(StepControlValues))},
                                   MemoryTerm::control);
    slot.votes = persistent.take(DType::f32, {sizeof(VoteValues) / sizeof(float)}, MemoryTerm::control);
    if (job_.model.experts.on())
      slot.expert_counts =
          persistent.take(DType::f32, {job_.model.layers, job_.model.experts.count}, MemoryTerm::control);
  }
  take_judging(persistent);
}

void Trainer::make_chunks(Arena& persistent) {
  if (layout_.options.offload_activations) {
    const auto flow = [&] {
      return persistent.take(job_.precision.compute, {flow_rows(), job_.model.hidden},
                             MemoryTerm::activations);
    };
    const std::array forward{flow(), flow()}, backward{flow(), flow()};
    flows_.emplace(groups_.host_link(), forward, backward);
  }
  const Shape flow{flow_rows(), job_.model.hidden};
  const parallel::ScheduleShape pipeline = parallel::schedule_shape(layout_.options, 1);
  for (const model::ChunkParams& ids : declared_.chunks) {
    const int index =
        pipeline.chunk_of(static_cast<int>(at(place_, Axis::pp)), static_cast<int>(chunks_.size()));
    Chunk& chunk = chunks_.emplace_back(
        Chunk{model::ModelChunk(job_.model, job_.recompute, ids, job_.precision.compute, params_,
                                {.backend = backend_,
                                 .group = groups_.tp(),
                                 .sequence_parallel = layout_.options.sequence_parallel,
                                 .overlap_chunks = layout_.options.tp_overlap_chunks,
                                 .overlap_backward = layout_.options.overlap_tp_backward},
                                rope_, job_.attention.backward, context_parallel(), expert_parallel()),
              {},
              {},
              {},
              {}});
    if (flows_) chunk.model.offload_flows(*flows_);
    const auto take = [&] { return persistent.take(job_.precision.compute, flow, MemoryTerm::activations); };
    if (!chunk.model.last())
      chunk.out = take(), chunk.other_out = pipeline.stays_on_rank(index) ? chunk.out : take();
    if (!chunk.model.first())
      chunk.din = take(), chunk.other_din = pipeline.stays_on_rank(index - 1) ? chunk.din : take();
  }
}

void Trainer::make_frames() {
  std::vector<const PassSchedule*> passes{&evaluate_};
  for (const auto& [count, pass] : train_) passes.push_back(&pass);
  for (const PassSchedule* pass : passes) {
    const std::vector<int>& slots = pass->slots[static_cast<std::size_t>(SlotClass::forward_to_weight)].slots;
    frames_.resize(slots.size());
    for (std::size_t pool = 0; pool < slots.size(); ++pool)
      frames_[pool].resize(std::max(frames_[pool].size(), static_cast<std::size_t>(slots[pool])));
  }
  for (std::size_t c = 0; c < chunks_.size(); ++c)
    for (model::Frame& frame : frames_[static_cast<std::size_t>(memory_.pool_of_chunk()[c])])
      frame.segments.reserve(chunks_[c].model.segments().size());
}

void Trainer::add_partial_sums() {
  const model::LocalSizes local = model::local_sizes(job_.model, layout_.options.tp, at(place_, Axis::tp),
                                                     backend_.target().vocab_multiple);
  for (model::ParamId id = 0; id < params_.count(); ++id)
    if (params_.info(id).shard.placement == parallel::TensorPlacement::partial && groups_.tp().size() > 1 &&
        params_.info(id).trainable)
      params_.add_partial_sum(id, 0, params_.info(id).shard.logical.numel(), groups_.tp(),
                              params_.info(id).vectors      ? "norm_gradients"
                              : job_.model.lora.on()        ? "adapter_gradients"
                              : params_.info(id).projection ? "latent_gradients"
                                                            : "router_gradients");
  if (groups_.kv() != nullptr) {
    // Key and value heads are the last rows of the merged projection.
    const std::int64_t first = local.heads * job_.model.head_dim,
                       count = 2 * local.kv_heads * job_.model.head_dim;
    for (const model::ChunkParams& chunk : declared_.chunks)
      for (const model::LayerParams& layer : chunk.layers) {
        if (job_.model.lora.on()) {
          add_shared_adapter_sums(layer.qkv.adapter, local);
          continue;
        }
        params_.add_partial_sum(layer.qkv.weight, first * job_.model.hidden, count * job_.model.hidden,
                                *groups_.kv(), "shared_heads_gradient");
        if (layer.qkv.bias != model::kNoParam)
          params_.add_partial_sum(layer.qkv.bias, first, count, *groups_.kv(), "shared_heads_gradient");
        // A norm over all key heads has separate weights per head.
        if (layer.k_norm != model::kNoParam &&
            params_.info(layer.k_norm).shard.placement == parallel::TensorPlacement::shard)
          params_.add_partial_sum(layer.k_norm, 0, count / 2, *groups_.kv(), "shared_heads_gradient");
      }
  }
  if (declared_.tied_copy != model::kNoParam && params_.info(declared_.tied_copy).trainable)
    params_.add_partial_sum(
        declared_.tied_copy, 0,
        parallel::local_shape(params_.info(declared_.tied_copy).shard, layout_.options.tp).numel(),
        *groups_.tied(), "tied_embedding_gradient");
}

/// The same for an adapter's rows: adapted queries come before keys and values.
void Trainer::add_shared_adapter_sums(const model::AdapterParams& adapter, const model::LocalSizes& local) {
  std::int64_t own = 0, shared = 0;
  for (const std::size_t segment : adapter.segments) ++(segment == 0 ? own : shared);
  if (adapter.whole) shared = 2;
  const std::int64_t row = job_.model.lora.rank * job_.model.head_dim;
  if (shared > 0)
    params_.add_partial_sum(adapter.b, own * local.heads * row, shared * local.kv_heads * row, *groups_.kv(),
                            "shared_heads_gradient");
}

void Trainer::initialise_tables() {
  model::fill_rope_tables(job_.model, rope_, backend_, *compute_);
  begin_loss_scale();
}

void Trainer::initialise() {
  initialise_tables();
  params_.initialise(*compute_, job_.seed);
}

void Trainer::initialise_adapters() {
  initialise_tables();
  params_.initialise_trainable(*compute_, job_.seed);
}

/// The passes that follow are of `global` sequences.
void Trainer::use_batch(std::int64_t global) {
  microbatches_ = job_.microbatches(global);
  shape_.global = global;
  grad_scale_ = 1.0f / static_cast<float>(job_.loss_terms(global));
}

void Trainer::launch(std::int64_t step, BatchSource& batches, const StepVote& vote,
                     const std::function<void()>& before_update) {
  Stream& s = *compute_;
  clock_.start(s);
  ReportSlot& slot = slots_[static_cast<std::size_t>(slot_)];
  slot.step = step;
  slot.lr = learning_rate(job_.optimizer, step, job_.steps);
  use_batch(job_.batch.of_step(step));
  slot.loss_terms = job_.loss_terms(shape_.global);

  slot.hashed = hashes_copies_;
  // A judged step may be computed again, so its microbatches are kept.
  std::optional<KeptBatches> kept;
  judged_ = judge_ != nullptr && judge_->judges(step);
  if (judged_) kept.emplace(batches);
  for (bool first = true;; first = false) {
    make_gradients(slot, kept ? static_cast<BatchSource&>(*kept) : batches, vote);
    if (slot.hashed && first) {
      clock_.enter(s, base::LedgerPart::other);
      copies_->make(backend_, s, slot.copy_hashes);
    }
    if (before_update) {
      page_->enter(Activity::snapshot);
      clock_.enter(s, base::LedgerPart::checkpoint);
      before_update();
    }
    page_->enter(Activity::optimizer);
    clock_.enter(s, base::LedgerPart::optimizer);
    control(slot);
    if (!judged_) break;
    const StepVerdict verdict = judge_computation(slot);
    if (verdict == StepVerdict::skip) pass_over(slot);
    if (verdict != StepVerdict::again) break;
    kept->rewind();
  }
  if (state_hashes_) {
    clock_.enter(s, base::LedgerPart::other);
    state_hashes_->make(backend_, s, slot.state_before);
    clock_.enter(s, base::LedgerPart::optimizer);
  }
  update(slot);
  clock_.enter(s, base::LedgerPart::other);
  if (state_hashes_) state_hashes_->make(backend_, s, slot.state_after);
  clock_.end(s);
  slot_ = (slot_ + 1) % StepClock::kMaxSteps;
}

/// Forward, backward and the sums over ranks. Depends only on the state, the batch and the step's number.
void Trainer::make_gradients(const ReportSlot& slot, BatchSource& batches, const StepVote& vote) {
  Stream& s = *compute_;
  const VoteValues asked{.stop = vote.stop ? 1.0f : 0.0f, .save = static_cast<float>(save_vote(vote))};
  backend_.write(s, std::as_bytes(std::span(&asked, 1)), slot.votes);

  clock_.enter(s, base::LedgerPart::compute);
  if (slot.expert_counts.defined()) backend_.fill_zero(s, slot.expert_counts);
  params_.begin_step(s, microbatches_);
  if (job_.model.dropout.on())
    dropout_key_ = mix_keys(hash_name("dropout", job_.seed), static_cast<std::uint64_t>(slot.step));
  run(parallel::ParamGatherer::Pass::train, batches);
  dropout_key_.reset();

  page_->enter(Activity::reduce_grads);
  params_.finish_grads();
}

/// Computes the norm, the loss and the votes over all ranks, and from them the control of the update.
void Trainer::control(const ReportSlot& slot) {
  Stream& s = *compute_;
  backend_.open_list(s, {.part = "norm"});
  for (std::size_t i = 0; i < norm_runs_.size(); ++i) {
    const std::int64_t begin = first_block_[i], count = first_block_[i + 1] - begin;
    if (count > 0)
      backend_.block_square_sums(
          s, norm_runs_[i].view->norm_sums(*norm_runs_[i].run, square_sums_.rows(begin, count)));
  }
  backend_.close_list(s);
  const Tensor square_sum = slot.totals.rows(0, 1), loss = slot.totals.rows(1, 1);
  if (judged_) read_own_loss(loss);
  backend_.total_square_sum(s, {.sums = square_sums_,
                                .first_block = first_block_,
                                .total = square_sum,
                                .nonfinite = nonfinite_,
                                .flag = slot.votes.rows(3, 1),
                                .flag_value = as_vote(groups_.rank())});
  groups_.world()
      .all_reduce(s, slot.totals, parallel::ReduceOp::sum,
                  {.label = "norm_and_loss", .accumulate = DType::f64})
      ->wait(s);
  if (norms_groups(slot.step)) sum_groups(slot);
  if (slot.expert_counts.defined()) sum_expert_counts(slot);
  groups_.world().all_reduce(s, slot.votes, parallel::ReduceOp::max, {.label = "votes"})->wait(s);
  backend_.step_control(s, {.square_sum = square_sum,
                            .loss = loss,
                            .weight = slot.totals.rows(2, 1),
                            .nominal_weight = static_cast<double>(slot.loss_terms),
                            .nonfinite = nonfinite_,
                            .outside = slot.votes.rows(2, 1),
                            .crowded = slot.votes.rows(4, 1),
                            .clip_norm = job_.optimizer.grad_clip,
                            .values = slot.control,
                            .loss_scale = params_.loss_scale(),
                            .min_loss_scale = job_.precision.loss_scale.least,
                            .step = slot.step,
                            .beta1 = static_cast<float>(job_.optimizer.beta1),
                            .beta2 = static_cast<float>(job_.optimizer.beta2)});
}

void Trainer::update(const ReportSlot& slot) {
  Stream& s = *compute_;
  // Muon's iterations are many short calls, which repeat as a list. Other updates are a few long calls with
  // new arguments in each step, which gain nothing from it.
  backend_.open_list(s, {.part = "update"});
  for (const auto& optimizer : optimizers_)
    optimizer->update(
        s, {.step = slot.step, .lr = slot.lr, .control = slot.control, .expert_counts = slot.expert_counts});
  backend_.close_list(s);
  update_loss_scale(slot);
  params_.updated(s);
}

StepReport Trainer::report() {
  page_->enter(Activity::report);
  // The compute stream continues with later work meanwhile.
  backend_.wait(*reports_, clock_.over());
  const ReportSlot& slot = slots_[static_cast<std::size_t>((slot_ + StepClock::kMaxSteps - clock_.unread()) %
                                                           StepClock::kMaxSteps)];
  StepControlValues values;
  VoteValues voted;
  StepReport report;
  const MeanLoss mean = read_loss(*reports_, slot);
  report.loss = mean.loss;
  report.loss_weight = mean.weight;
  if (job_.loss.z_loss > 0) report.z_loss = mean.z_loss;
  if (job_.loss.expert_balance > 0) report.expert_balance = mean.expert_balance;
  report.expert_load = read_expert_load(slot);
  report.rewards = mean.rewards;
  backend_.read_back(*reports_, slot.control, std::as_writable_bytes(std::span(&values, 1)));
  report.group_norms = read_group_norms(slot, mean.weight, static_cast<double>(values.loss_scale));
  backend_.read_back(*reports_, slot.votes, std::as_writable_bytes(std::span(&voted, 1)));
  if (slot.hashed) report.copy_hashes = read_hashes(*reports_, slot.copy_hashes);
  if (state_hashes_) report.changed_state = changed_state(*reports_, slot);
  report.time = clock_.read();
  backend_.end_step(report.time[base::LedgerPart::compute] + report.time[base::LedgerPart::optimizer]);
  report.grad_norm = values.grad_norm;
  report.learning_rate = slot.lr;
  report.skipped = values.skip == StepControlValues::kSkipNonfinite;
  report.passed_over = values.skip == StepControlValues::kSkipJudged;
  report.overflow = values.skip == StepControlValues::kSkipOverflow;
  if (params_.loss_scale().defined()) report.loss_scale = static_cast<double>(values.loss_scale);
  if (report.skipped || report.overflow)
    name_nonfinite(values, voted.nonfinite, report.nonfinite_rank, report.nonfinite);
  if (voted.outside > 0) report.outside_rank = rank_of_vote(voted.outside);
  if (values.skip == StepControlValues::kSkipCrowded) report.crowded_rank = rank_of_vote(voted.crowded);
  const auto save = static_cast<SaveVote>(static_cast<int>(voted.save));
  report.vote = {.stop = voted.stop > 0,
                 .checkpoint = save == SaveVote::checkpoint,
                 .memory = save == SaveVote::memory,
                 .no_room = save == SaveVote::no_room};
  return report;
}

Trainer::MeanLoss Trainer::read_loss(Stream& stream, const ReportSlot& slot) {
  std::array<double, 5> sums{};
  const std::int64_t count = slot.totals.numel() - 1;
  backend_.read_back(stream, slot.totals.rows(1, count),
                     std::as_writable_bytes(std::span(sums)).first(static_cast<std::size_t>(count) * 8));
  const double weight = sums[1], whole = weight > 0 ? weight : 1;
  // A non-finite loss stays non-finite even if no token counts.
  MeanLoss mean{.loss = sums[0] / whole, .weight = weight, .rewards = {}};
  if (job_.loss.dpo.on())
    mean.rewards = io::PairRewards{.margin = sums[2] / whole,
                                   .accuracy = sums[3] / whole,
                                   .chosen = sums[4] / whole,
                                   .rejected = (sums[4] - sums[2]) / whole};
  else mean.z_loss = sums[2] / whole;
  if (job_.loss.expert_balance > 0)
    mean.expert_balance =
        sums[static_cast<std::size_t>(count) - 1] * static_cast<double>(slot.loss_terms) / whole;
  return mean;
}

Trainer::Evaluation Trainer::evaluate(BatchSource& batches, bool stop) {
  base::check(clock_.unread() == 0, "an evaluation comes between steps");
  Stream& s = *compute_;
  ReportSlot& slot = slots_[static_cast<std::size_t>(slot_)];
  use_batch(job_.batch.global);
  slot.loss_terms = job_.loss_terms_per_step();
  backend_.fill_zero(s, slot.votes);
  run(parallel::ParamGatherer::Pass::evaluate, batches);
  VoteValues found;
  backend_.read_back(s, slot.votes, std::as_writable_bytes(std::span(&found, 1)));
  if (found.outside > 0) throw outside_error("an evaluation", job_.model.vocab);
  if (found.crowded > 0) throw crowded_error("an evaluation", layout_.options);
  const double asked = stop ? 1 : 0;
  backend_.write(s, std::as_bytes(std::span(&asked, 1)), slot.totals.rows(0, 1));
  groups_.world()
      .all_reduce(s, slot.totals, parallel::ReduceOp::sum, {.label = "loss", .accumulate = DType::f64})
      ->wait(s);
  double votes = 0;
  backend_.read_back(s, slot.totals.rows(0, 1), std::as_writable_bytes(std::span(&votes, 1)));
  const MeanLoss mean = read_loss(s, slot);
  return {mean.loss, mean.weight, mean.rewards, votes > 0};
}

}  // namespace trainerd::core::train
