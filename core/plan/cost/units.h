#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

// Formats amounts as text for the planner's reports.

namespace trainerd::core::plan {

inline double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024 * 1024); }

inline std::string duration(double seconds) {
  if (seconds >= 2.0 * 86400) return fmt::format("{:.1f} days", seconds / 86400);
  if (seconds >= 7200) return fmt::format("{:.1f} h", seconds / 3600);
  if (seconds >= 120) return fmt::format("{:.1f} min", seconds / 60);
  return seconds >= 1 ? fmt::format("{:.3g} s", seconds) : fmt::format("{:.3g} ms", seconds * 1e3);
}

inline std::string amount(double bytes) {
  for (const auto& [unit, size] : {std::pair{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}})
    if (bytes >= size) return fmt::format("{:.3g} {}", bytes / size, unit);
  return fmt::format("{:.3g} kB", bytes / 1e3);
}

}  // namespace trainerd::core::plan
