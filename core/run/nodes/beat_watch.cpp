#include "core/run/nodes/beat_watch.h"

#include <algorithm>

namespace trainerd::core::run {

void BeatWatch::on_beat(std::int64_t peer, double now) {
  const auto found = last_beats_.find(peer);
  if (found != last_beats_.end()) found->second = now;
}

std::vector<BeatWatch::Silent> BeatWatch::judge(double now) {
  if (judged_ >= 0 && now - judged_ > options_.every_seconds)
    for (auto& [peer, at] : last_beats_) at = std::min(now, at + (now - judged_));
  judged_ = now;
  std::vector<Silent> silent;
  for (const auto& [peer, at] : last_beats_)
    if (now - at >= options_.dead_seconds) silent.push_back({peer, now - at});
  for (const Silent& dead : silent) last_beats_.erase(dead.peer);
  return silent;
}

double BeatWatch::longest(double now) const {
  double most = 0;
  for (const auto& [peer, at] : last_beats_) most = std::max(most, now - at);
  return most;
}

}  // namespace trainerd::core::run
