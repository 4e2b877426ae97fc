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

/// What operators took in one kind of step, over many steps. Of equal calls the mean of a step counts, since
/// a step is their sum, and of that the median over the steps.
class OperatorSamples {
 public:
  void add(const kernels::ObservedCall& call);
  /// Ends a step that took `seconds`; what was not spent in operators was the host's.
  void end_step(double seconds);
  /// Forgets the step under way.
  void drop_step();

  struct Sample {
    rank::RecordedOp op;
    double seconds = 0;  ///< of a call: median over the steps of their means
    double calls = 0;    ///< in a step
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
  std::map<Key, std::vector<double>> now_, means_;  ///< calls of the step under way; means of those before
  std::map<Key, double> calls_;                     ///< of all steps
  double steps_done() const { return static_cast<double>(steps_.size()); }
  std::vector<double> host_, steps_;
  double operators_ = 0;
};

double median(std::vector<double> values);

struct FittedCurves {
  parallel::MeasuredRates::Operators curves;
  double error = 0;  ///< mean over the samples, weighted by their time
};
/// Curves through the samples: see measured_cost.h.
FittedCurves fit_curves(const std::vector<OperatorSamples::Sample>& samples);

}  // namespace trainerd::core::plan
