#pragma once

#include <cstdint>

namespace trainerd::io {

/// How often an action is repeated: every `steps` steps, every `seconds` seconds, or at an automatically
/// chosen interval. At most one of the three is set; with none, never.
struct Interval {
  std::int64_t steps = 0;
  double seconds = 0;
  bool automatic = false;

  bool never() const { return steps == 0 && seconds == 0 && !automatic; }
  bool operator==(const Interval&) const = default;
};

}  // namespace trainerd::io
