#include "io/checkpoint/retention.h"

#include <cstddef>
#include <utility>

namespace trainerd::io {

std::vector<bool> retained(std::span<const Retained> newest_first, const Retention& retention) {
  std::vector<bool> stays(newest_first.size());
  bool newest_good = true;
  for (std::size_t i = 0; i < newest_first.size(); ++i) {
    stays[i] = static_cast<std::int64_t>(i) < retention.keep;
    if (newest_first[i].good && std::exchange(newest_good, false)) stays[i] = true;
  }
  if (retention.keep_every == 0) return stays;
  std::int64_t span = 0;  // latest range that has its first checkpoint, going from old to new
  for (std::size_t i = newest_first.size(); i-- > 0;)
    if (const std::int64_t its = newest_first[i].step / retention.keep_every; its > span) {
      span = its;
      stays[i] = true;
    }
  return stays;
}

}  // namespace trainerd::io
