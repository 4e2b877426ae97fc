#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trainerd::io {

/// Rules for which complete checkpoints are kept.
struct Retention {
  std::int64_t keep = 3;        ///< number of newest ones kept, at least 1
  std::int64_t keep_every = 0;  ///< also keeps the first of every so many steps for good; 0: none
};

/// A complete checkpoint, as seen by the retention rules.
struct Retained {
  std::int64_t step = 0;
  bool good = false;  ///< tagged as good: the losses after it stayed normal
};

/// Returns for each of `newest_first` whether it is kept: the newest `keep`, the newest that is tagged good,
/// and with `keep_every` the first one in each range of steps [n * keep_every, (n + 1) * keep_every), n >= 1.
/// Removing others does not change which one is the first.
std::vector<bool> retained(std::span<const Retained> newest_first, const Retention& retention);

}  // namespace trainerd::io
