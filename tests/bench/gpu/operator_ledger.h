#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "kernels/backend/observed_backend.h"

namespace trainerd::bench {

/// Sums the measured time of a step's operators and its lower bound, per operator and class of arguments.
class OperatorLedger {
 public:
  struct Rates {
    double bytes_per_second = 0;  ///< of a copy, reads plus writes
    double flops_per_second = 0;  ///< peak in the job's dtype; 0 if unknown: floors then count bytes only
  };
  explicit OperatorLedger(const Rates& rates) : rates_(rates) {}

  void add(const kernels::ObservedCall& call);

  /// One JSON object per class, longest first: op, shape, dtype, calls, seconds, flops, bytes, floor_seconds
  /// (sum over calls of max(bytes / bytes_per_second, flops / flops_per_second)).
  std::vector<nlohmann::ordered_json> rows(const std::string& job) const;
  double seconds() const;
  double floor_seconds() const;

 private:
  struct Total {
    std::int64_t calls = 0;
    double seconds = 0, flops = 0, bytes = 0, floor_seconds = 0;
  };
  Rates rates_;
  std::map<std::pair<kernels::Operator, kernels::OpClass>, Total> totals_;
};

}  // namespace trainerd::bench
