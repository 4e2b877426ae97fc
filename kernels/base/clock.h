#pragma once

namespace trainerd::base {

/// Seconds on the monotonic clock; only differences are meaningful.
double monotonic_seconds();
/// Seconds since the Unix epoch, for records that people read.
double wall_seconds();

}  // namespace trainerd::base
