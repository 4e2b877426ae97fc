#pragma once

namespace trainerd::base {

/// Seconds on the monotonic clock; only differences mean anything.
double monotonic_seconds();
/// Seconds since the Unix epoch, for records that people read.
double wall_seconds();

}  // namespace trainerd::base
