// Steps that are judged between their gradients and their update.

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "core/train/canary_step.h"
#include "core/train/trainer.h"
#include "kernels/base/error.h"
#include "kernels/tensor/rng.h"

namespace trainerd::core::train {

using namespace kernels;

base::DataError outside_error(const std::string& what, std::int64_t vocab) {
  return base::data_error(what + ": token ids on the device are outside the vocabulary of " +
                          std::to_string(vocab) +
                          ", and nothing was updated; ids are checked as they are read, so that they changed "
                          "in memory or on their way to the device: test this machine's memory and device");
}

base::CapacityError crowded_error(const std::string& what, const parallel::ParallelOptions& options) {
  std::array<char, 32> text{};
  char* end = std::to_chars(text.data(), text.data() + text.size(), options.ep_capacity).ptr;
  return base::capacity_error(
      what + ": more tokens chose the experts of a rank than parallel.ep_capacity " +
      std::string(text.data(), static_cast<std::size_t>(end - text.data())) +
      " has memory for, and nothing was updated: go on from the last checkpoint with "
      "a larger one, or with 0" +
      (options.ep_comm == parallel::ExpertComm::all_to_all ? " and ep_comm: all_gather" : "") +
      ", which is enough for any choice; loss.expert_balance makes such choices rarer");
}

void Trainer::take_judging(Arena& persistent) {
  if (!job_.supervise.judges_steps()) return;
  grad_hashes_.emplace(params_);
  grad_hash_values_ =
      persistent.take(DType::i32, {std::max<std::int64_t>(1, grad_hashes_->count()), 2}, MemoryTerm::control);
  judge_votes_ = persistent.take(DType::f32, {layout_.grid.ranks()}, MemoryTerm::control);
}

BatchShape Trainer::alone_shape() const {
  return canary_shape(batch_shape(), layout_.options, job_.precision.gemm);
}

Trainer::OwnResult Trainer::compute_alone(BatchSource& batches) {
  base::check(clock_.unread() == 0, "a step whose result is not used comes between steps");
  Stream& s = *compute_;
  OwnResult result;
  // The norm's sums are free while gradients are made.
  const Tensor hash{square_sums_.data, DType::i32, {2}};
  params_.observe_grads([&](Stream& stream, const Tensor& grad) {
    std::uint64_t value = 0;
    backend_.tensor_hash(stream, {.x = grad, .out = hash});
    backend_.read_back(stream, hash, std::as_writable_bytes(std::span(&value, 1)));
    result.gradients = mix_keys(result.gradients, value);
  });
  const ReportSlot& slot = slots_[static_cast<std::size_t>(slot_)];
  backend_.fill_zero(s, slot.votes);
  use_batch(job_.batch.global);
  params_.begin_step(s, microbatches_);
  alone_ = true, shape_ = alone_shape();
  run(parallel::ParamGatherer::Pass::train, batches);
  alone_ = false, shape_ = batch_shape();
  params_.finish_grads();
  params_.observe_grads({});
  backend_.read_back(s, slot.totals.rows(1, 1), std::as_writable_bytes(std::span(&result.loss, 1)));
  return result;
}

/// The sum of losses that this rank adds. The host waits for the device, as a report does: what holds it up
/// is what runs there.
void Trainer::read_own_loss(const Tensor& loss) {
  page_->enter(Activity::report);
  backend_.read_back(*compute_, loss, std::as_writable_bytes(std::span(&own_loss_, 1)));
  page_->enter(Activity::optimizer);
}

/// The host waits for the device, as above.
StepVerdict Trainer::judge_computation(const ReportSlot& slot) {
  page_->enter(Activity::report);
  const StepVerdict verdict = judge_->judge(outcome(slot));
  page_->enter(Activity::optimizer);
  return verdict;
}

StepOutcome Trainer::outcome(const ReportSlot& slot) {
  Stream& s = *compute_;
  StepControlValues values;
  VoteValues voted;
  backend_.read_back(s, slot.control, std::as_writable_bytes(std::span(&values, 1)));
  backend_.read_back(s, slot.votes, std::as_writable_bytes(std::span(&voted, 1)));
  const MeanLoss mean = read_loss(s, slot);
  StepOutcome outcome{.step = slot.step,
                      .loss = mean.loss,
                      .loss_weight = mean.weight,
                      .grad_norm = values.grad_norm,
                      .finite = values.skip != StepControlValues::kSkipNonfinite,
                      .overflow = values.skip == StepControlValues::kSkipOverflow,
                      .unusable = values.skip == StepControlValues::kSkipOutside ||
                                  values.skip == StepControlValues::kSkipCrowded,
                      .own_loss = own_loss_};
  if (!outcome.finite) name_nonfinite(values, voted.nonfinite, outcome.nonfinite_rank, outcome.nonfinite);
  return outcome;
}

void Trainer::name_nonfinite(const StepControlValues& values, float voted, std::int64_t& rank,
                             std::string& name) const {
  if (voted > 0) rank = rank_of_vote(voted);
  if (rank == groups_.rank())
    name = values.nonfinite < 0
               ? "loss"
               : params_.info(norm_runs_[static_cast<std::size_t>(values.nonfinite)].run->id).name;
}

void Trainer::pass_over(const ReportSlot& slot) {
  StepControlValues values;
  backend_.read_back(*compute_, slot.control, std::as_writable_bytes(std::span(&values, 1)));
  values.skip = StepControlValues::kSkipJudged;
  backend_.write(*compute_, std::as_bytes(std::span(&values, 1)), slot.control);
}

std::vector<std::uint64_t> Trainer::hash_gradients() {
  base::check(grad_hashes_.has_value(), "gradients are hashed in a job that judges its steps");
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(grad_hashes_->count()));
  grad_hashes_->make(backend_, *compute_, grad_hash_values_);
  if (!hashes.empty())
    backend_.read_back(*compute_, grad_hash_values_, std::as_writable_bytes(std::span(hashes)));
  return hashes;
}

std::vector<float> Trainer::most_of_ranks(const std::vector<float>& values) {
  std::vector<float> most = values;
  const Tensor votes = judge_votes_.rows(0, static_cast<std::int64_t>(values.size()));
  backend_.write(*compute_, std::as_bytes(std::span(values)), votes);
  groups_.world()
      .all_reduce(*compute_, votes, parallel::ReduceOp::max, {.label = "judgement"})
      ->wait(*compute_);
  backend_.read_back(*compute_, votes, std::as_writable_bytes(std::span(most)));
  return most;
}

}  // namespace trainerd::core::train
