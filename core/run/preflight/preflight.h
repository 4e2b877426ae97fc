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

/// Below this share of the median of devices of its name a device counts as slow: a GPU, which the rank has
/// for itself, and a CPU, which other programs may have kept busy.
inline constexpr double kSlowGpu = 0.5, kSlowCpu = 0.25;
/// A node's clock that differs by more seconds from node 0's is a warning: times in logs and records of the
/// two do not agree.
inline constexpr double kClockSeconds = 1;

/// The slow devices among these, a line each: "computes at 31 TFLOP/s, and the median of 8 NVIDIA H200 is 612
/// TFLOP/s". Of two devices of a name the quicker is what the other is held against.
struct SlowDevice {
  std::int64_t rank = 0;
  std::string text = {};
};
std::vector<SlowDevice> slow_devices(std::span<const RankRate> rates, double least_share);

/// By how much a node's clock is ahead of node 0's, as far as two messages say, one each way, which may have
/// waited to be read.
struct ClockRange {
  double least = 0, most = 0;  ///< seconds
};
/// "its clock is at least 35.0 s ahead of node 0's"; empty when it may agree.
std::string clock_finding(const ClockRange& ahead);

}  // namespace trainerd::core::run
