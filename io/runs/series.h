#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/records/records.h"

namespace trainerd::io {

/// Statistics of one quantity over several steps. Values that are not finite are ignored.
struct Spread {
  std::int64_t count = 0;
  double sum = 0, low = 0, high = 0;
  void add(double value);
  void add(const Spread& other);
  double mean() const { return sum / static_cast<double>(count); }  ///< needs count > 0
};

/// A group of consecutive steps.
struct StepBucket {
  std::int64_t first_step = 0, last_step = 0, steps = 0;
  Spread loss, grad_norm, learning_rate, tokens_per_second, mfu;
  /// Seconds, summed over the steps, in the ledger's order.
  std::array<double, base::kLedgerParts.size()> time{};
  void add(const StepBucket& other);
};

/// A run's steps for charts, in memory that does not grow with the run: when there are too many buckets,
/// pairs of them are merged.
class StepSeries {
 public:
  void add(const StepRecord& record);
  const std::vector<StepBucket>& buckets() const { return buckets_; }
  /// Merged to at most `limit` buckets.
  std::vector<StepBucket> coarse(std::size_t limit) const;

 private:
  std::vector<StepBucket> buckets_;
  std::int64_t steps_per_bucket_ = 1;
};

}  // namespace trainerd::io
