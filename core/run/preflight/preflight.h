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

/// A link between ranks of two nodes, measured before the first step.
struct LinkTime {
  std::int64_t from_rank = 0, to_rank = 0;
  double latency_seconds = 0;  ///< one way
  double bytes_per_second = 0;

  bool operator==(const LinkTime&) const = default;
};

/// A link is slow whose bandwidth is below this share of the median of all links, or of the cluster's rate;
/// or whose latency is above so many times the median, and above kLeastLatencySeconds: on CPUs the host's
/// other programs hold a message up.
inline constexpr double kSlowLink = 0.5, kSlowLinkOnCpu = 0.25, kLateLink = 10;
inline constexpr double kLeastLatencySeconds = 2e-3;

/// The slow links among these, a line each: "2.1 GB/s, and the median of 8 links is 24 GB/s". Two links alone
/// are each held against the better of them. `rate`: of the cluster, bytes per second; 0: unknown.
struct SlowLink {
  LinkTime link = {};
  std::string text = {};
};
std::vector<SlowLink> slow_links(std::span<const LinkTime> links, double rate, double least_share);

/// What a rank makes of a step before its first, whose update is left out: all ranks of a kind get the same
/// weights and batch, so that they make the same of it, bit by bit.
struct CanaryResult {
  std::int64_t rank = 0;
  std::string kind = {};  ///< its part of the model, its device and threads; empty: it made no such step
  std::uint64_t loss = 0, gradients = 0;

  bool operator==(const CanaryResult&) const = default;
};
/// "rank 2 computes other gradients than its 3 replicas from the same weights and batch, before its first
/// step: ...", where ranks of a kind differ; empty: none do. Where no result is that of more than half, all
/// are named.
std::string canary_finding(std::span<const CanaryResult> results);

/// By how much a node's clock is ahead of node 0's, as far as two messages say, one each way, which may have
/// waited to be read.
struct ClockRange {
  double least = 0, most = 0;  ///< seconds
};
/// "its clock is at least 35.0 s ahead of node 0's"; empty if the clocks may agree.
std::string clock_finding(const ClockRange& ahead);

}  // namespace trainerd::core::run
