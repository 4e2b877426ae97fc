#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trainerd::core::run {

/// What a rank's device does of GEMMs, measured before its first step.
struct RankRate {
  std::int64_t rank = 0;
  std::string device = {};  ///< its name: devices of one name are held against each other
  double gemm_flops = 0;    ///< per second; 0: unknown
};

/// Below this share of the median of devices of its name a device counts as slow.
inline constexpr double kSlowDevice = 0.5;
/// A node's clock that differs by more seconds from node 0's is told of: times in logs and records of the two
/// do not agree.
inline constexpr double kClockSeconds = 1;

/// The slow devices among these, a line each: "computes at 31 TFLOP/s, and the median of 8 NVIDIA H200 is 612
/// TFLOP/s". Of two devices of a name the quicker is what the other is held against.
struct SlowDevice {
  std::int64_t rank = 0;
  std::string text = {};
};
std::vector<SlowDevice> slow_devices(std::span<const RankRate> rates);

/// "its clock is 35.0 s ahead of node 0's"; empty when it agrees.
std::string clock_finding(double seconds_ahead);

}  // namespace trainerd::core::run
