#include "core/run/agent/preflight_watch.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/run/agent/run.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

// Two links say nothing of each other: other programs may have held one up.
constexpr std::size_t kLeastLinks = 3;

/// The best of each pair of nodes: a rank that other programs starve does not tell of the link.
std::vector<LinkTime> best_of_pairs(const std::vector<LinkTime>& links, std::int64_t ranks_per_node) {
  std::map<std::pair<std::int64_t, std::int64_t>, LinkTime> best;
  for (const LinkTime& link : links) {
    const auto [at, first] =
        best.try_emplace({link.from_rank / ranks_per_node, link.to_rank / ranks_per_node}, link);
    if (first) continue;
    at->second.latency_seconds = std::min(at->second.latency_seconds, link.latency_seconds);
    at->second.bytes_per_second = std::max(at->second.bytes_per_second, link.bytes_per_second);
  }
  std::vector<LinkTime> all;
  for (const auto& [nodes, link] : best) all.push_back(link);
  return all;
}

}  // namespace

void PreflightWatch::begin() {
  if (!run_.job().supervise.preflight) return;
  storage_.emplace(
      run_.output().path(), [path = run_.output().path()] { return io::open_storage(path); },
      ".preflight-node-" + std::to_string(run_.membership().node()));
}

NodeReady PreflightWatch::add_findings(NodeReady ready) {
  if (!run_.job().supervise.preflight) return ready;
  if (storage_) ready.storage = storage_->finding();
  storage_.reset();
  ready.wall_seconds = base::wall_seconds();
  ready.clock_ahead = run_.membership().clock_ahead();
  return ready;
}

void PreflightWatch::require_alike(const ReadyRanks& ready) const {
  if (!run_.membership().leads()) return;
  const std::vector<CanaryResult> results = ready.canaries();
  if (const std::string finding = canary_finding(results); !finding.empty())
    throw base::device_error(finding);
}

void PreflightWatch::report(const char* part, const std::string& place, const std::string& what) {
  const std::string text = "pre-flight: " + place + ": " + what;
  if (what.empty() || !reported_.insert(text).second) return;
  run_.notify(io::NoticeKind::warning, text);
  run_.sinks().each(&io::MetricsSink::on_preflight, io::PreflightRecord{part});
}

void PreflightWatch::judge(const ReadyRanks& ready) {
  const Membership& membership = run_.membership();
  if (!membership.leads() || !run_.job().supervise.preflight) return;
  if (storage_) report("storage", membership.name_of(0), storage_->finding());
  storage_.reset();
  for (const auto& [node, said] : ready.nodes()) report("storage", membership.name_of(node), said.storage);
  for (const auto& [node, ahead] : ready.clocks())
    report("clock", membership.name_of(node), clock_finding(ahead));
  const PlannedWorld& world = run_.world();
  const bool cpu = run_.topology().device.kind == kernels::DeviceKind::cpu;
  for (const SlowDevice& slow : slow_devices(ready.rates(), cpu ? kSlowCpu : kSlowGpu))
    report("device", place_of(slow.rank, slow.rank / world.here.count, !membership.alone(), world.layout),
           slow.text);
  const std::int64_t per_node = world.here.count;
  for (const LinkTime& link : ready.links())
    run_.sinks().each(&io::MetricsSink::on_link,
                      io::LinkRecord{link.from_rank, link.to_rank, link.from_rank / per_node,
                                     link.to_rank / per_node, link.latency_seconds, link.bytes_per_second});
  const std::vector<LinkTime> pairs = cpu ? best_of_pairs(ready.links(), per_node) : ready.links();
  if (pairs.size() < kLeastLinks) return;
  for (const SlowLink& slow : slow_links(pairs, 0, cpu ? kSlowLinkOnCpu : kSlowLink))
    report("link",
           place_of(slow.link.from_rank, slow.link.from_rank / per_node, true, world.layout) + " to " +
               place_of(slow.link.to_rank, slow.link.to_rank / per_node, true, world.layout),
           slow.text);
}

}  // namespace trainerd::core::run
