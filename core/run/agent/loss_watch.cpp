#include "core/run/agent/loss_watch.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/run/supervise/robust_score.h"

namespace trainerd::core::run {

double LossWatch::score(double loss) const {
  std::vector<double> values;
  for (const Entry& entry : latest_) values.push_back(entry.loss);
  return robust_score(std::move(values), loss);
}

bool LossWatch::add(std::int64_t step, double loss) {
  const bool in_line = std::isfinite(loss) && (latest_.size() < kMinSteps || score(loss) < kOutlier);
  outliers_ = in_line ? 0 : outliers_ + 1;
  if (std::cmp_greater_equal(outliers_, kWindow)) latest_.clear();
  if (in_line || (latest_.empty() && std::isfinite(loss))) latest_.push_back({step, loss});
  if (latest_.size() > kWindow) latest_.pop_front();
  return in_line;
}

void LossWatch::drop_after(std::int64_t step) {
  while (!latest_.empty() && latest_.back().step > step) latest_.pop_back();
}

bool GoodTags::add(std::int64_t step) {
  if (waiting_ || step < last_outlier_) return false;
  waiting_ = step;
  return true;
}

std::optional<GoodTags::Verdict> GoodTags::on_step(std::int64_t step, double loss) {
  const bool in_line = watch_.add(step, loss);
  if (!in_line) last_outlier_ = step;
  if (!waiting_ || (in_line && step - *waiting_ < after_)) return std::nullopt;
  return Verdict{*std::exchange(waiting_, std::nullopt), in_line};
}

bool GoodTags::drop_after(std::int64_t step) {
  watch_.drop_after(step);
  last_outlier_ = std::min(last_outlier_, step);
  if (!waiting_ || *waiting_ <= step) return false;
  waiting_.reset();
  return true;
}

}  // namespace trainerd::core::run
