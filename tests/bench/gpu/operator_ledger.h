#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "kernels/backend/observed_backend.h"

namespace trainerd::bench {

/// What the operators of a step took beside what they have to: calls of one operator on one class of
/// arguments together.
class OperatorLedger {
 public:
  struct Rates {
    double bytes_per_second = 0;  ///< of a copy, read and written
    double flops_per_second = 0;  ///< peak in the job's dtype; 0: not known, and floors are those of bytes
  };
  explicit OperatorLedger(const Rates& rates) : rates_(rates) {}

  void add(const kernels::ObservedCall& call);

  /// A JSON object for each class, the longest first: op, shape, dtype, calls, seconds, flops, bytes,
  /// floor_seconds (the sum over calls of the larger of bytes and FLOPs over their rates).
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
