#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trainerd::parallel {

/// Times in seconds that `trainerd calibrate` measured on a machine.
struct MeasuredRates {
  /// Key: operator and dtype, "linear_fprop.fp32". Value for matrix products and attention: coefficients, see
  /// core/plan/cost/measured_cost.h. For others: pairs of bytes and seconds, rising. "other.fp32" is fitted
  /// to all of those together and used for operators that were not measured.
  using Operators = std::map<std::string, std::vector<double>>;

  Operators alone;              ///< one device of the node active
  Operators crowded;            ///< all devices active: they share memory and caches
  double operator_seconds = 0;  ///< host time between two operators, while the device is idle
  /// Collectives among all devices of a node over shared memory, by operation: pairs of bytes and seconds.
  /// "message": from one device to another.
  Operators collectives;
  std::int64_t devices = 1;  ///< active devices per node in `crowded`
  std::int64_t busy = 1;     ///< active devices per node in the job

  bool known() const { return !alone.empty(); }
};

}  // namespace trainerd::parallel
