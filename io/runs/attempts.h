#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/records/records.h"

namespace trainerd::io {

/// A part of a run during which its workers lived: from a start, resume or restart to the next end.
struct Attempt {
  double begin = 0;             ///< Unix seconds
  double end = 0;               ///< 0: it still runs, or its end was not recorded
  std::int64_t start_step = 0;  ///< steps done before
  std::int64_t last_step = 0;
  std::int64_t lost_steps = 0;  ///< done again by the next attempt
  double lost_seconds = 0;
  bool ended = false;
  NoticeKind how = NoticeKind::finish;  ///< of one that ended: finish, stop or failure
  std::string outcome;                  ///< one line
};

/// By the notices of a run, in the order that they were logged. An attempt without an end before the next
/// began was killed.
std::vector<Attempt> attempts_of(const std::vector<NoticeRecord>& notices);

/// Time between their beginnings and ends; one that still runs is counted until `now`.
double total_seconds(const std::vector<Attempt>& attempts, double now);

}  // namespace trainerd::io
