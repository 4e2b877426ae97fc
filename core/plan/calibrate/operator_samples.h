#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/rank/record.h"
#include "kernels/backend/observed_backend.h"
#include "parallel/layout/measured_rates.h"

namespace trainerd::core::plan {

/// Operator times of one kind of step, over many steps. Equal calls within a step count by their mean,
/// because a step is their sum. The result is the median of these means over the steps.
class OperatorSamples {
 public:
  void add(const kernels::ObservedCall& call);
  /// Ends a step that took `seconds`. Time not spent in operators counts as host time.
  void end_step(double seconds);
  /// Discards the unfinished step.
  void drop_step();

  struct Sample {
    rank::RecordedOp op;
    double seconds = 0;  ///< per call: median over the steps of the mean in a step
    double calls = 0;    ///< per step
  };
  std::vector<Sample> samples() const;
  /// Medians over the steps.
  double host_seconds() const;
  double step_seconds() const;
  double operators() const { return operators_; }

 private:
  struct Key {
    kernels::Operator op = kernels::Operator::copy;
    kernels::OpClass what;
    double flops = 0, bytes = 0;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::vector<double>> now_, means_;  ///< calls of the unfinished step; means of finished steps
  std::map<Key, double> calls_;                     ///< total over all steps
  double steps_done() const { return static_cast<double>(steps_.size()); }
  std::vector<double> host_, steps_;
  double operators_ = 0;
};

double median(std::vector<double> values);

struct FittedCurves {
  parallel::MeasuredRates::Operators curves;
  double error = 0;  ///< mean over the samples, weighted by their time
};
/// Fits curves to the samples: see measured_cost.h.
FittedCurves fit_curves(const std::vector<OperatorSamples::Sample>& samples);

}  // namespace trainerd::core::plan
