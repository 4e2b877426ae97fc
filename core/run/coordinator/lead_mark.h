#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trainerd::core::run {

/// What the agent that leads leaves in the lock file of the output directory: the next one takes the
/// directory over from it, even if it is frozen and holds the lock still.
struct LeadMark {
  std::string run;         ///< as the coordinator names it
  std::int64_t epoch = 0;  ///< of the lead

  std::string text() const;
  /// None: another kind of text.
  static std::optional<LeadMark> parse(const std::string& text);
};

}  // namespace trainerd::core::run
