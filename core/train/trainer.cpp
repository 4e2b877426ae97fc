#include "core/train/trainer.h"

#include <algorithm>
#include <array>

#include "core/model/parameters.h"
#include "core/train/learning_rate.h"

namespace trainerd::core {
namespace {

using namespace kernels;
using parallel::Action;
using parallel::ActionKind;
using parallel::kLifetimes;
using parallel::Lifetime;
using parallel::Pass;

std::vector<ParamInfo> declared(const JobSpec& job, const parallel::Layout& layout) {
  std::vector<ParamInfo> infos;
  declare_parameters(job.model, layout.chunks.at(0), job.batch.micro * job.model.seq_len, infos);
  return infos;
}

ChunkParams chunk_ids(const JobSpec& job, const parallel::Layout& layout) {
  std::vector<ParamInfo> infos;
  return declare_parameters(job.model, layout.chunks.at(0), job.batch.micro * job.model.seq_len, infos);
}

std::vector<Action> schedule(const JobSpec& job, const parallel::Layout& layout, Pass pass) {
  return parallel::make_schedule(layout.options.schedule, static_cast<int>(layout.options.pp), static_cast<int>(job.microbatches()),
                                 pass);
}

parallel::SlotTable slots_of(const JobSpec& job, const std::vector<Action>& actions, int lifetime) {
  return parallel::color_slots(actions, 0, static_cast<int>(job.microbatches()), static_cast<Lifetime>(lifetime));
}

template <class T>
std::span<const std::byte> bytes_of(const T* data, std::size_t count) {
  return std::as_bytes(std::span<const T>(data, count));
}

}  // namespace

SlotCounts count_slots(const JobSpec& job, const parallel::Layout& layout) {
  SlotCounts counts{};
  for (const Pass pass : {Pass::train, Pass::evaluate}) {
    const auto actions = schedule(job, layout, pass);
    for (int i = 0; i < kLifetimes; ++i)
      counts[static_cast<std::size_t>(i)] = std::max(counts[static_cast<std::size_t>(i)], slots_of(job, actions, i).slots);
  }
  return counts;
}

Trainer::Trainer(const JobSpec& job, const parallel::Layout& layout, Backend& backend, const Communicators& comms,
                 StepMemory& memory)
    : job_(job),
      layout_(layout),
      backend_(backend),
      comms_(comms),
      memory_(memory),
      microbatches_(job.microbatches()),
      tokens_(job.batch.micro * job.model.seq_len),
      grad_scale_(1.0f / static_cast<float>(job.tokens_per_step())),
      compute_(backend.make_stream("compute", &memory.scratch())),
      params_(declared(job, layout), job.precision, backend, memory.persistent()),
      clock_(backend) {
  Arena& persistent = memory.persistent();
  stage_.emplace(job_.model, chunk_ids(job, layout), job_.precision.compute, params_,
                 parallel::TensorParallel{backend_, comms_.tp}, persistent);
  reducer_.emplace(comms_.dp, params_.flat_grads());

  tokens_MT_ = persistent.take(DType::i32, {microbatches_, tokens_}, MemoryTerm::batch);
  targets_MT_ = persistent.take(DType::i32, {microbatches_, tokens_}, MemoryTerm::batch);
  positions_T_ = persistent.take(DType::i32, {tokens_}, MemoryTerm::batch);
  loss_weight_T_ = persistent.take(DType::f32, {tokens_}, MemoryTerm::batch);
  cu_seqlens_ = persistent.take(DType::i32, {job_.batch.micro + 1}, MemoryTerm::batch);
  loss_T_ = persistent.take(DType::f32, {tokens_}, MemoryTerm::batch);
  staging_.resize(static_cast<std::size_t>(microbatches_ * tokens_));

  first_block_.push_back(0);
  for (ParamId id = 0; id < params_.count(); ++id)
    first_block_.push_back(first_block_.back() + norm_blocks(params_.grad(id).numel()));
  square_sums_ = persistent.take(DType::f64, {first_block_.back()}, MemoryTerm::control);
  loss_sum_ = persistent.take(DType::f64, {1}, MemoryTerm::control);
  control_ = persistent.take(DType::u8, {static_cast<std::int64_t>(sizeof(StepControlValues))}, MemoryTerm::control);
  votes_ = persistent.take(DType::f32, {2}, MemoryTerm::control);
  update_ranges_ = params_.update_ranges(static_cast<float>(job_.optimizer.weight_decay));

  for (const Pass pass : {Pass::train, Pass::evaluate}) {
    PassPlan& plan = pass == Pass::train ? train_ : evaluate_;
    plan.actions = schedule(job, layout, pass);
    for (int i = 0; i < kLifetimes; ++i) plan.slots[static_cast<std::size_t>(i)] = slots_of(job, plan.actions, i);
  }
  frames_.resize(static_cast<std::size_t>(microbatches_));
  for (Frame& frame : frames_) frame.segments.reserve(stage_->segments().size());
}

void Trainer::initialise_tables() {
  stage_->initialise(*compute_);
  const std::int64_t seq = job_.model.seq_len;
  std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens_)), cu(static_cast<std::size_t>(job_.batch.micro) + 1);
  const std::vector<float> ones(positions.size(), 1.0f);
  for (std::int64_t t = 0; t < tokens_; ++t) positions[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t % seq);
  for (std::size_t b = 0; b < cu.size(); ++b) cu[b] = static_cast<std::int32_t>(static_cast<std::int64_t>(b) * seq);
  backend_.write(*compute_, bytes_of(positions.data(), positions.size()), positions_T_);
  backend_.write(*compute_, bytes_of(ones.data(), ones.size()), loss_weight_T_);
  backend_.write(*compute_, bytes_of(cu.data(), cu.size()), cu_seqlens_);
}

void Trainer::initialise() {
  initialise_tables();
  params_.initialise(*compute_, job_.seed);
}

void Trainer::load_batch(std::span<const std::int32_t> samples) {
  const std::size_t seq = static_cast<std::size_t>(job_.model.seq_len);
  base::check(samples.size() == static_cast<std::size_t>(samples_per_step()) * (seq + 1), "a step takes its samples, whole");
  // A sample's inputs are all but its last token, its targets all but its first.
  for (const bool target : {false, true}) {
    for (std::size_t i = 0; i * (seq + 1) < samples.size(); ++i)
      std::copy_n(samples.begin() + static_cast<std::ptrdiff_t>(i * (seq + 1) + (target ? 1 : 0)), seq,
                  staging_.begin() + static_cast<std::ptrdiff_t>(i * seq));
    backend_.write(*compute_, bytes_of(staging_.data(), staging_.size()), target ? targets_MT_ : tokens_MT_);
  }
}

Batch Trainer::batch(int microbatch) const {
  Batch batch;
  batch.tokens_T = tokens_MT_.rows(microbatch, 1).reshaped({tokens_});
  batch.targets_T = targets_MT_.rows(microbatch, 1).reshaped({tokens_});
  batch.positions_T = positions_T_;
  batch.loss_weight_T = loss_weight_T_;
  batch.cu_seqlens = cu_seqlens_;
  batch.sequences = job_.batch.micro;
  batch.max_seqlen = job_.model.seq_len;
  return batch;
}

Frame& Trainer::open_frame(int microbatch, Pass pass) {
  const PassPlan& plan = pass == Pass::train ? train_ : evaluate_;
  const auto slot = [&](Lifetime lifetime) -> Arena* {
    const int index = plan.slots[static_cast<std::size_t>(lifetime)].slot_of_microbatch[static_cast<std::size_t>(microbatch)];
    return index < 0 ? nullptr : &memory_.slot(lifetime, index);
  };
  Frame& frame = frames_[static_cast<std::size_t>(microbatch)];
  frame.to_backward = slot(Lifetime::forward_to_backward);
  frame.to_weight = slot(Lifetime::forward_to_weight);
  frame.grads = slot(Lifetime::backward_to_weight);
  return frame;
}

void Trainer::close_frame(int microbatch, Pass) {
  Frame& frame = frames_[static_cast<std::size_t>(microbatch)];
  frame.to_backward->release(0);
  frame.to_weight->release(0);
}

// The executor: the only code that knows the schedule.
void Trainer::run(const std::vector<Action>& actions, Pass pass) {
  WriteMode loss_mode = WriteMode::assign;
  const LossTarget loss{loss_T_, grad_scale_};
  const auto add_loss = [&] {
    backend_.ordered_sum(*compute_, {.x = loss_T_, .out = loss_sum_, .mode = loss_mode});
    loss_mode = WriteMode::accumulate;
  };
  for (const Action& action : actions) {
    switch (action.kind) {
      case ActionKind::forward:
        stage_->forward(*compute_, open_frame(action.microbatch, pass), batch(action.microbatch));
        break;
      case ActionKind::forward_only:
        stage_->forward_only(*compute_, open_frame(action.microbatch, pass), batch(action.microbatch), loss);
        add_loss();
        close_frame(action.microbatch, pass);
        break;
      case ActionKind::backward:
        stage_->backward(*compute_, frames_[static_cast<std::size_t>(action.microbatch)], batch(action.microbatch), loss);
        add_loss();
        close_frame(action.microbatch, pass);
        break;
      case ActionKind::reduce_grads: reducer_->ready(*compute_); break;
    }
    base::check(compute_->scratch().top() == 0, "scratch is empty between actions");
  }
}

void Trainer::square_sums() {
  for (ParamId id = 0; id < params_.count(); ++id) {
    const std::int64_t begin = first_block_[static_cast<std::size_t>(id)], end = first_block_[static_cast<std::size_t>(id) + 1];
    backend_.block_square_sums(*compute_, {.x = params_.grad(id), .sums = square_sums_.rows(begin, end - begin)});
  }
}

StepReport Trainer::step(std::int64_t step, std::span<const std::int32_t> samples, const StepVote& vote) {
  using Ledger = io::TimeLedger;
  Stream& s = *compute_;
  clock_.start(s);
  load_batch(samples);
  const std::array<float, 2> asked{vote.stop ? 1.0f : 0.0f, vote.checkpoint ? 1.0f : 0.0f};
  backend_.write(s, bytes_of(asked.data(), asked.size()), votes_);

  clock_.enter(s, &Ledger::compute);
  params_.begin_step();
  run(train_.actions, Pass::train);
  params_.complete_grads(s);

  clock_.enter(s, &Ledger::exposed_communication);
  reducer_->finish(s);
  comms_.dp.all_reduce(s, loss_sum_, parallel::ReduceOp::sum, {.label = "loss", .accumulate = DType::f64})->wait(s);

  clock_.enter(s, &Ledger::optimizer);
  const double lr = learning_rate(job_.optimizer, step, job_.steps);
  square_sums();
  comms_.world.all_reduce(s, votes_, parallel::ReduceOp::max, {.label = "votes"})->wait(s);
  backend_.step_control(s, {.square_sums = square_sums_, .first_block = first_block_, .loss = loss_sum_,
                            .clip_norm = job_.optimizer.grad_clip, .values = control_});
  backend_.adamw_update(s, {.ranges = update_ranges_, .grads = params_.flat_grads(), .master = params_.flat_master(),
                            .moment1 = params_.flat_moment1(), .moment2 = params_.flat_moment2(),
                            .params = params_.flat_params(), .control = control_, .lr = static_cast<float>(lr),
                            .beta1 = static_cast<float>(job_.optimizer.beta1), .beta2 = static_cast<float>(job_.optimizer.beta2),
                            .eps = static_cast<float>(job_.optimizer.eps), .step = step});
  params_.changed();

  clock_.enter(s, &Ledger::other);
  StepControlValues values;
  std::array<float, 2> voted{};
  StepReport report;
  report.loss = read_loss();
  backend_.read_back(s, control_, std::as_writable_bytes(std::span(&values, 1)));
  backend_.read_back(s, votes_, std::as_writable_bytes(std::span(voted)));
  report.time = clock_.finish(s);
  report.grad_norm = values.grad_norm;
  report.learning_rate = lr;
  report.skipped = values.skip != 0;
  if (report.skipped) report.nonfinite = values.nonfinite < 0 ? "loss" : params_.info(values.nonfinite).name;
  report.vote = {voted[0] > 0, voted[1] > 0};
  return report;
}

double Trainer::read_loss() {
  double sum = 0;
  backend_.read_back(*compute_, loss_sum_, std::as_writable_bytes(std::span(&sum, 1)));
  return sum / static_cast<double>(job_.tokens_per_step());
}

double Trainer::evaluate(std::span<const std::int32_t> samples) {
  load_batch(samples);
  run(evaluate_.actions, Pass::evaluate);
  comms_.dp.all_reduce(*compute_, loss_sum_, parallel::ReduceOp::sum, {.label = "loss", .accumulate = DType::f64})
      ->wait(*compute_);
  return read_loss();
}

}  // namespace trainerd::core
