#include "io/runs/series.h"

#include <algorithm>
#include <cmath>

namespace trainerd::io {
namespace {

constexpr std::size_t kMaxBuckets = 1024;  // more than the pixels of a chart

std::vector<StepBucket> merge(const std::vector<StepBucket>& fine, std::size_t each) {
  std::vector<StepBucket> coarse;
  for (std::size_t i = 0; i < fine.size(); ++i) {
    if (i % each == 0) coarse.push_back(fine[i]);
    else coarse.back().add(fine[i]);
  }
  return coarse;
}

}  // namespace

void Spread::add(double value) {
  if (!std::isfinite(value)) return;
  low = count == 0 ? value : std::min(low, value);
  high = count == 0 ? value : std::max(high, value);
  sum += value;
  ++count;
}

void Spread::add(const Spread& other) {
  if (other.count == 0) return;
  low = count == 0 ? other.low : std::min(low, other.low);
  high = count == 0 ? other.high : std::max(high, other.high);
  sum += other.sum;
  count += other.count;
}

void StepBucket::add(const StepBucket& other) {
  last_step = other.last_step;
  steps += other.steps;
  loss.add(other.loss);
  grad_norm.add(other.grad_norm);
  learning_rate.add(other.learning_rate);
  tokens_per_second.add(other.tokens_per_second);
  mfu.add(other.mfu);
  for (std::size_t i = 0; i < time.size(); ++i) time[i] += other.time[i];
}

void StepSeries::add(const StepRecord& record) {
  StepBucket one;
  one.first_step = one.last_step = record.step;
  one.steps = 1;
  one.loss.add(record.loss);
  one.grad_norm.add(record.grad_norm);
  one.learning_rate.add(record.learning_rate);
  one.tokens_per_second.add(record.tokens_per_second);
  if (record.mfu) one.mfu.add(*record.mfu);
  for (std::size_t i = 0; i < one.time.size(); ++i)
    one.time[i] = std::max(0.0, record.time[base::kLedgerParts[i].part]);
  if (!buckets_.empty() && buckets_.back().steps < steps_per_bucket_) {
    buckets_.back().add(one);
    return;
  }
  if (buckets_.size() == kMaxBuckets) {
    buckets_ = merge(buckets_, 2);
    steps_per_bucket_ *= 2;
  }
  buckets_.push_back(one);
}

std::vector<StepBucket> StepSeries::coarse(std::size_t limit) const {
  return merge(buckets_, std::max<std::size_t>(1, (buckets_.size() + limit - 1) / limit));
}

}  // namespace trainerd::io
