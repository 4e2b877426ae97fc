#include "core/run/agent/ready_ranks.h"

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {

void ReadyRanks::add_node(std::int64_t node, NodeReady ready) {
  if (ready.wall_seconds > 0)
    clocks_[node] = {.least = ready.wall_seconds - base::wall_seconds(), .most = ready.clock_ahead};
  nodes_[node] = std::move(ready);
}

std::vector<RankRate> ReadyRanks::rates() const {
  std::vector<RankRate> rates;
  for (const auto& [rank, ready] : ranks_) rates.push_back({rank, ready.device, ready.gemm_flops});
  for (const auto& [node, ready] : nodes_) rates.insert(rates.end(), ready.rates.begin(), ready.rates.end());
  return rates;
}

std::vector<LinkTime> ReadyRanks::links() const {
  std::vector<LinkTime> links;
  for (const auto& [rank, ready] : ranks_) links.insert(links.end(), ready.links.begin(), ready.links.end());
  for (const auto& [node, ready] : nodes_) links.insert(links.end(), ready.links.begin(), ready.links.end());
  return links;
}

std::vector<CanaryResult> ReadyRanks::canaries() const {
  std::vector<CanaryResult> results;
  for (const auto& [rank, ready] : ranks_) results.push_back(ready.canary);
  for (const auto& [node, ready] : nodes_)
    results.insert(results.end(), ready.canaries.begin(), ready.canaries.end());
  return results;
}

NodeReady ReadyRanks::summary(std::int64_t attempt, const Evaluated& evaluated) const {
  return {.attempt = attempt,
          .threads = threads(),
          .data_fingerprint = ranks_.at(here_.first).data_fingerprint,
          .evaluated = evaluated,
          .rates = rates(),
          .links = links(),
          .canaries = canaries()};
}

std::int64_t ReadyRanks::threads() const {
  std::int64_t threads = 0;
  for (const auto& [rank, ready] : ranks_) threads += ready.threads;
  for (const auto& [node, ready] : nodes_) threads += ready.threads;
  return threads;
}

void ReadyRanks::require_data(const std::string& data, const Evaluated& evaluated) const {
  const std::string here = membership_.name_of(membership_.node());
  for (const auto& [rank, ready] : ranks_)
    if (ready.data_fingerprint != data)
      throw base::data_error("rank " + std::to_string(rank) + " sees other data than " + here +
                             ": a file changed while the run started");
  for (const auto& [node, ready] : nodes_)
    if (ready.data_fingerprint != data)
      throw base::data_error(membership_.name_of(node) + " sees other data than " + here + " (" +
                             ready.data_fingerprint + ", not " + data + "): give it the files that " + here +
                             " has");
  for (const auto& [node, ready] : nodes_)
    for (const auto& [key, text] : evaluated) {
      const auto theirs = ready.evaluated.find(key);
      if (theirs != ready.evaluated.end() && theirs->second == text) continue;
      throw base::data_error(membership_.name_of(node) + " has other files for " + key + " than " + here +
                             " (" + (theirs == ready.evaluated.end() ? "none" : theirs->second) + ", not " +
                             text + "): give it the files that " + here + " has");
    }
}

}  // namespace trainerd::core::run
