#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace trainerd::parallel {

/// What `trainerd calibrate` measured of a machine, in seconds.
struct MeasuredRates {
  /// By operator and dtype, "linear_fprop.fp32". Matrix products and attention: coefficients, see
  /// core/plan/cost/measured_cost.h. Others: bytes and seconds in turn, rising. "other.fp32" is all of those
  /// together, for operators that were not met.
  using Operators = std::map<std::string, std::vector<double>>;

  Operators alone;              ///< with one device of the node at work
  Operators crowded;            ///< with all of them: they share memory and caches
  double operator_seconds = 0;  ///< of the host between two operators, which the device waits for
  /// Among all devices of a node over shared memory, by operation: bytes and seconds in turn. "message": from
  /// one to another.
  Operators collectives;
  std::int64_t devices = 1;  ///< of a node, when all work
  std::int64_t busy = 1;     ///< of a node, in the job at hand

  bool known() const { return !alone.empty(); }
};

}  // namespace trainerd::parallel
