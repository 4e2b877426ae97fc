#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/records/records.h"

namespace trainerd::io {

/// A part of a run with one set of workers: from a start, resume or restart to the next end.
struct Attempt {
  double begin = 0;             ///< Unix seconds
  double end = 0;               ///< 0: still running, or the end was not recorded
  std::int64_t start_step = 0;  ///< steps done before
  std::int64_t last_step = 0;
  std::int64_t lost_steps = 0;  ///< repeated by the next attempt
  double lost_seconds = 0;
  bool ended = false;
  NoticeKind how = NoticeKind::finish;  ///< if it ended: finish, stop or failure
  std::string outcome;                  ///< one line
};

/// Derives the attempts from a run's notices, in logged order. An attempt without an end before the next one
/// begins was killed.
std::vector<Attempt> attempts_of(const std::vector<NoticeRecord>& notices);

/// Total time of the attempts; one that is still running counts until `now`.
double total_seconds(const std::vector<Attempt>& attempts, double now);

}  // namespace trainerd::io
