#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trainerd::io {

/// Which complete checkpoints stay in one place.
struct Retention {
  std::int64_t keep = 3;        ///< the newest, at least 1
  std::int64_t keep_every = 0;  ///< and the first of every so many steps for good; 0: none
};

/// A complete checkpoint, as far as its retention goes.
struct Retained {
  std::int64_t step = 0;
  bool good = false;  ///< tagged: the losses that followed it stayed sane
};

/// For each of `newest_first` whether it stays: the newest `keep`, the newest that is tagged good, and with
/// `keep_every` of steps [n * keep_every, (n + 1) * keep_every), n >= 1, the first that is there. What is the
/// first stays the first however many are removed after it.
std::vector<bool> retained(std::span<const Retained> newest_first, const Retention& retention);

}  // namespace trainerd::io
