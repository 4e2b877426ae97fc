#pragma once

#include <cstdint>

namespace trainerd::io {

/// How often something is done: every so many steps, or after so much time. At most one of the two is set;
/// with neither, never.
struct Interval {
  std::int64_t steps = 0;
  double seconds = 0;

  bool never() const { return steps == 0 && seconds == 0; }
  bool operator==(const Interval&) const = default;
};

}  // namespace trainerd::io
