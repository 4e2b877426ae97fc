// What reports contain in addition to a step's loss: gradient norms by parameter group, expert load, and the
// losses of single samples.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/train/trainer.h"

namespace trainerd::core::train {

using namespace kernels;

bool Trainer::norms_groups(std::int64_t step) const {
  return job_.metrics.grad_norms.every > 0 && step % job_.metrics.grad_norms.every == 0;
}

void Trainer::sum_groups(const ReportSlot& slot) {
  Stream& s = *compute_;
  backend_.group_square_sums(s, {.sums = square_sums_,
                                 .first_block = first_block_,
                                 .group_of_run = group_of_run_,
                                 .totals = slot.group_sums});
  groups_.world()
      .all_reduce(s, slot.group_sums, parallel::ReduceOp::sum,
                  {.label = "group_norms", .accumulate = DType::f64})
      ->wait(s);
}

/// Scales the norms to the mean over the counted tokens, as kernels::StepControl does with the total norm.
std::vector<double> Trainer::read_group_norms(const ReportSlot& slot, double weight, double loss_scale) {
  if (!norms_groups(slot.step)) return {};
  std::vector<double> norms(norm_groups().size());
  backend_.read_back(*reports_, slot.group_sums, std::as_writable_bytes(std::span(norms)));
  const double to_mean = (weight > 0 ? static_cast<double>(slot.loss_terms) / weight : 1) / loss_scale;
  for (double& norm : norms) norm = std::sqrt(norm) * to_mean;
  return norms;
}

void Trainer::sum_expert_counts(const ReportSlot& slot) {
  groups_.world()
      .all_reduce(*compute_, slot.expert_counts, parallel::ReduceOp::sum, {.label = "expert_counts"})
      ->wait(*compute_);
}

std::vector<double> Trainer::read_expert_load(const ReportSlot& slot) {
  if (!slot.expert_counts.defined()) return {};
  std::vector<float> counts(static_cast<std::size_t>(slot.expert_counts.numel()));
  backend_.read_back(*reports_, slot.expert_counts, std::as_writable_bytes(std::span(counts)));
  std::vector<double> loads;
  const auto experts = static_cast<std::ptrdiff_t>(slot.expert_counts.size(1));
  for (auto layer = counts.begin(); layer != counts.end(); layer += experts) {
    const double all = std::accumulate(layer, layer + experts, 0.0);
    loads.push_back(all > 0 ? *std::max_element(layer, layer + experts) * static_cast<double>(experts) / all
                            : 0);
  }
  return loads;
}

Trainer::SampleLosses Trainer::sample_losses(BatchSource& batches, bool stop) {
  const std::int64_t each = job_.loss.dpo.on() ? 2 : 1;
  sample_losses_.assign(static_cast<std::size_t>(job_.batch.global * each), 0);
  SampleLosses result;
  result.stop = evaluate(batches, stop).stop;
  result.loss = std::exchange(sample_losses_, {});
  sum_over_ranks(result.loss);
  return result;
}

void Trainer::sum_over_ranks(std::span<double> values) {
  base::check(sample_sums_.numel() > 0, "values are summed in a job with choices or pairs");
  Stream& s = *compute_;
  for (std::span<double> rest = values; !rest.empty();) {
    const std::span<double> next = rest.first(std::min(rest.size(), static_cast<std::size_t>(kSampleSums)));
    const Tensor sums = sample_sums_.rows(0, static_cast<std::int64_t>(next.size()));
    backend_.write(s, std::as_bytes(next), sums);
    groups_.world()
        .all_reduce(s, sums, parallel::ReduceOp::sum, {.label = "sample_losses", .accumulate = DType::f64})
        ->wait(s);
    backend_.read_back(s, sums, std::as_writable_bytes(next));
    rest = rest.subspan(next.size());
  }
}

}  // namespace trainerd::core::train
