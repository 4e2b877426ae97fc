#include "core/run/preflight/preflight.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "io/text/text.h"

namespace trainerd::core::run {

std::vector<SlowDevice> slow_devices(std::span<const RankRate> rates, double least_share) {
  std::map<std::string, std::vector<double>> by_name;
  for (const RankRate& rate : rates)
    if (rate.gemm_flops > 0) by_name[rate.device].push_back(rate.gemm_flops);
  for (auto& [name, flops] : by_name) std::ranges::sort(flops);
  std::vector<SlowDevice> slow;
  for (const RankRate& rate : rates) {
    if (rate.gemm_flops <= 0) continue;
    const std::vector<double>& peers = by_name.at(rate.device);
    const double median = peers[peers.size() / 2];
    if (rate.gemm_flops >= least_share * median) continue;
    slow.push_back({rate.rank, fmt::format("computes at {}, and the median of {} {} is {}",
                                           io::with_unit(rate.gemm_flops, "FLOP/s"), peers.size(),
                                           rate.device, io::with_unit(median, "FLOP/s"))});
  }
  return slow;
}

std::string clock_finding(const ClockRange& ahead) {
  if (ahead.least > kClockSeconds)
    return fmt::format("its clock is at least {:.1f} s ahead of node 0's", ahead.least);
  if (ahead.most < -kClockSeconds)
    return fmt::format("its clock is at least {:.1f} s behind node 0's", -ahead.most);
  return "";
}

}  // namespace trainerd::core::run
