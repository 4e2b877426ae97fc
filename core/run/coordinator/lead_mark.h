#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trainerd::core::run {

/// The mark that the leader writes into the output directory's lock file. It lets the next leader take the
/// directory over, even from a frozen agent that still holds the lock.
struct LeadMark {
  std::string run;         ///< the coordinator's name for the run
  std::int64_t epoch = 0;  ///< number of the lead

  std::string text() const;
  /// None if the text is no mark.
  static std::optional<LeadMark> parse(const std::string& text);
};

}  // namespace trainerd::core::run
