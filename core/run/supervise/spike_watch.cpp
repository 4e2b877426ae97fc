#include "core/run/supervise/spike_watch.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "core/run/supervise/robust_score.h"

namespace trainerd::core::run {

std::string SpikeWatch::judge(const train::StepOutcome& o) const {
  if (!o.finite) {
    if (o.nonfinite_rank != rank_)
      return fmt::format("a gradient of rank {} is not finite", o.nonfinite_rank);
    return o.nonfinite == "loss" ? "the loss is not finite"
                                 : "the gradient of " + o.nonfinite + " is not finite";
  }
  const std::string loss = judge("loss", o.loss, losses_);
  return loss.empty() ? judge("gradient norm", o.grad_norm, norms_) : loss;
}

std::string SpikeWatch::judge(const char* what, double value, const std::deque<double>& latest) const {
  if (options_.score == 0 || latest.size() < kMinSteps) return "";
  std::vector<double> values(latest.begin(), latest.end());
  const double median = io::median(values), score = robust_score(std::move(values), value);
  if (score < options_.score) return "";
  return fmt::format(
      "the {} is {:.4g}, {:.4g} robust standard deviations above the median {:.4g} of the "
      "latest {} steps",
      what, value, score, median, latest.size());
}

void SpikeWatch::add(const train::StepOutcome& o) {
  const auto keep = [&](std::deque<double>& latest, double value) {
    latest.push_back(value);
    if (std::cmp_greater(latest.size(), options_.window)) latest.pop_front();
  };
  keep(losses_, o.loss);
  keep(norms_, o.grad_norm);
}

}  // namespace trainerd::core::run
