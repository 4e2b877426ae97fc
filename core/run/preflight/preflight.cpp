#include "core/run/preflight/preflight.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

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

std::vector<SlowLink> slow_links(std::span<const LinkTime> links, double rate, double least_share) {
  if (links.empty()) return {};
  std::vector<double> speeds, latencies;
  for (const LinkTime& link : links)
    speeds.push_back(link.bytes_per_second), latencies.push_back(link.latency_seconds);
  std::ranges::sort(speeds), std::ranges::sort(latencies);
  const double speed = speeds[speeds.size() / 2], latency = latencies[(latencies.size() - 1) / 2];
  std::vector<SlowLink> slow;
  const auto add = [&](const LinkTime& link, std::string text) { slow.push_back({link, std::move(text)}); };
  const auto bytes = [](double per_second) { return io::with_unit(per_second, "B/s"); };
  for (const LinkTime& link : links) {
    if (rate > 0 && link.bytes_per_second < least_share * rate)
      add(link, fmt::format("{}, and the cluster's rate is {}", bytes(link.bytes_per_second), bytes(rate)));
    else if (link.bytes_per_second < least_share * speed)
      add(link, fmt::format("{}, and the median of {} links is {}", bytes(link.bytes_per_second),
                            links.size(), bytes(speed)));
    else if (link.latency_seconds > kLateLink * latency && link.latency_seconds > kLeastLatencySeconds)
      add(link, fmt::format("a message takes {:.1f} ms, and the median of {} links is {:.1f} ms",
                            1e3 * link.latency_seconds, links.size(), 1e3 * latency));
  }
  return slow;
}

std::string canary_finding(std::span<const CanaryResult> results) {
  std::map<std::string, std::vector<CanaryResult>> kinds;
  for (const CanaryResult& result : results)
    if (!result.kind.empty()) kinds[result.kind].push_back(result);
  const auto same = [](const CanaryResult& a, const CanaryResult& b) {
    return a.loss == b.loss && a.gradients == b.gradients;
  };
  for (const auto& [kind, of_kind] : kinds) {
    const auto alike = [&of_kind = of_kind, &same](const CanaryResult& result) {
      return std::ranges::count_if(of_kind, [&](const CanaryResult& other) { return same(result, other); });
    };
    const CanaryResult& most = *std::ranges::max_element(of_kind, {}, alike);
    if (std::cmp_equal(alike(most), of_kind.size())) continue;
    const bool known = 2 * alike(most) > std::ssize(of_kind);
    std::vector<std::int64_t> ranks;
    bool loss = false;
    for (const CanaryResult& result : of_kind) {
      loss = loss || result.loss != most.loss;
      if (!known || !same(result, most)) ranks.push_back(result.rank);
    }
    const char* what = loss ? "another loss" : "other gradients";
    const char* then =
        "it computes wrongly, or has loaded other weights; take its device out of use, or its host where it "
        "has "
        "none";
    if (!known)
      return fmt::format(
          "ranks {} do not compute the same {} from the same weights and batch, before the "
          "first step: one of them computes wrongly, or has loaded other weights",
          fmt::join(ranks, ", "), loss ? "loss" : "gradients");
    return fmt::format(
        "rank{} {} compute{} {} than {} replicas from the same weights and batch, before the "
        "first step: {}",
        ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "), ranks.size() == 1 ? "s" : "", what, alike(most),
        then);
  }
  return "";
}

std::string clock_finding(const ClockRange& ahead) {
  if (ahead.least > kClockSeconds)
    return fmt::format("its clock is at least {:.1f} s ahead of node 0's", ahead.least);
  if (ahead.most < -kClockSeconds)
    return fmt::format("its clock is at least {:.1f} s behind node 0's", -ahead.most);
  return "";
}

}  // namespace trainerd::core::run
