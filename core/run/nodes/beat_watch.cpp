#include "core/run/nodes/beat_watch.h"

#include <algorithm>

namespace trainerd::core::run {

void BeatWatch::heard(std::int64_t peer, double now) {
  const auto at = heard_.find(peer);
  if (at != heard_.end()) at->second = now;
}

std::vector<BeatWatch::Silent> BeatWatch::judge(double now) {
  if (judged_ >= 0 && now - judged_ > options_.every_seconds)
    for (auto& [peer, heard] : heard_) heard = std::min(now, heard + (now - judged_));
  judged_ = now;
  std::vector<Silent> silent;
  for (const auto& [peer, heard] : heard_)
    if (now - heard >= options_.dead_seconds) silent.push_back({peer, now - heard});
  for (const Silent& dead : silent) heard_.erase(dead.peer);
  return silent;
}

double BeatWatch::longest(double now) const {
  double most = 0;
  for (const auto& [peer, heard] : heard_) most = std::max(most, now - heard);
  return most;
}

}  // namespace trainerd::core::run
