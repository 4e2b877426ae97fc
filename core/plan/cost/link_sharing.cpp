#include "core/plan/cost/link_sharing.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace trainerd::core::plan {

void LinkSharing::take(std::size_t id, const PortUse& use) {
  for (std::size_t port = 0; port < kPorts; ++port) {
    const double share = use.cost->shares[port];
    const std::size_t out = (static_cast<std::size_t>(use.rank) * kPorts + port) * 2;
    if (share > 0 && use.way != PortUse::Way::in) transfers_[id].uses.push_back({out, share});
    if (share > 0 && use.way != PortUse::Way::out) transfers_[id].uses.push_back({out + 1, share});
  }
}

std::size_t LinkSharing::start(double now, double latency, double bandwidth, std::span<const PortUse> uses) {
  if (free_.empty()) {
    free_.push_back(transfers_.size());
    transfers_.emplace_back();
  }
  const std::size_t id = free_.back();
  free_.pop_back();
  Transfer& t = transfers_[id];
  t.left = bandwidth, t.since = now, t.speed = 0, t.moves = false;
  t.uses.clear();
  for (const PortUse& use : uses) take(id, use);
  if (latency > 0) events_.push({now + latency, id, ++t.changes});
  else move(id, now);
  return id;
}

void LinkSharing::move(std::size_t id, double now) {
  Transfer& t = transfers_[id];
  t.moves = true, t.since = now;
  if (t.left <= 0) t.uses.clear();
  for (const Use& use : t.uses) {
    lanes_[use.lane].users.emplace_back(id, use.share);
    lanes_[use.lane].load += use.share;
  }
  set_pace(id, now);
  for (const Use& use : t.uses)
    for (const auto& [user, share] : lanes_[use.lane].users) set_pace(user, now);
}

void LinkSharing::leave(std::size_t id, double now) {
  for (const Use& use : transfers_[id].uses) {
    Lane& lane = lanes_[use.lane];
    std::erase_if(lane.users, [id](const auto& user) { return user.first == id; });
    // Summed from scratch, so that rounding errors do not accumulate.
    lane.load = std::accumulate(lane.users.begin(), lane.users.end(), 0.0,
                                [](double sum, const auto& user) { return sum + user.second; });
  }
  for (const Use& use : transfers_[id].uses)
    for (const auto& [user, share] : lanes_[use.lane].users) set_pace(user, now);
}

void LinkSharing::set_pace(std::size_t id, double now) {
  Transfer& t = transfers_[id];
  double load = 1;
  for (const Use& use : t.uses) load = std::max(load, lanes_[use.lane].load);
  if (t.speed == 1 / load) return;
  t.left = std::max(0.0, t.left - (now - t.since) * t.speed);
  t.since = now, t.speed = 1 / load;
  events_.push({now + t.left * load, id, ++t.changes});
}

double LinkSharing::next() {
  while (!events_.empty() && events_.top().changes != transfers_[events_.top().transfer].changes)
    events_.pop();
  return events_.empty() ? std::numeric_limits<double>::infinity() : events_.top().time;
}

std::size_t LinkSharing::step() {
  const double now = next();
  const std::size_t id = events_.top().transfer;
  events_.pop();
  if (!transfers_[id].moves) {
    move(id, now);
    return kNone;
  }
  ++transfers_[id].changes;
  leave(id, now);
  free_.push_back(id);
  return id;
}

}  // namespace trainerd::core::plan
