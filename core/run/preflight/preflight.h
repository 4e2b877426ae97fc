#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trainerd::core::run {

/// A rank's GEMM rate, measured before its first step.
struct RankRate {
  std::int64_t rank = 0;
  std::string device = {};  ///< name of the device; devices of the same name are compared
  double gemm_flops = 0;    ///< FLOP/s; 0: unknown
};

/// A device counts as slow below this fraction of the median of devices of the same name. The limit is lower
/// for a CPU, which other programs may keep busy, than for a GPU, which the rank has to itself.
inline constexpr double kSlowGpu = 0.5, kSlowCpu = 0.25;
/// A node's clock that differs from node 0's by more seconds than this is a warning: times in their logs and
/// records do not agree.
inline constexpr double kClockSeconds = 1;

/// The devices that are slow, with one line of text each: "computes at 31 TFLOP/s, and the median of 8 NVIDIA
/// H200 is 612 TFLOP/s". Of two devices with the same name the faster is the reference.
struct SlowDevice {
  std::int64_t rank = 0;
  std::string text = {};
};
std::vector<SlowDevice> slow_devices(std::span<const RankRate> rates, double least_share);

/// Bounds on how far a node's clock is ahead of node 0's, from one message in each direction. A message may
/// have waited before it was read, so the bounds are not tight.
struct ClockRange {
  double least = 0, most = 0;  ///< seconds
};
/// "its clock is at least 35.0 s ahead of node 0's"; empty if the clocks may agree.
std::string clock_finding(const ClockRange& ahead);

}  // namespace trainerd::core::run
