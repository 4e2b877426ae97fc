#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Numbers in human-readable form.

namespace trainerd::io {

/// 1234567 -> "1,234,567".
std::string with_commas(std::int64_t value);
/// Three significant digits and a decimal prefix: 10423000 -> "10.4M", 9120 -> "9.12k".
std::string short_number(double value);
/// The same with a unit: (5.74e11, "FLOP/s") -> "574 GFLOP/s".
std::string with_unit(double value, const std::string& unit);
/// "512 B", "3.9 MiB".
std::string short_bytes(std::int64_t bytes);
/// "850 ms", "12.3 s", "4m05s", "2h07m", "3d04h".
std::string short_duration(double seconds);

/// Parses a duration into seconds: numbers with the units ms, s, m, h, d, each unit at most once and the
/// largest first: "30s", "1.5h", "3h50m". Returns none for anything else, including a number without a unit.
std::optional<double> parse_duration(std::string_view text);
/// Regular expression (ECMA-262) that matches what `parse_duration` accepts.
std::string duration_pattern();
/// Returns the shortest text that `parse_duration` reads back to the same value: "10m", "1h30m", "2.5s".
/// `seconds` must be finite and >= 0.
std::string duration_text(double seconds);

/// Returns the median: the mean of the two middle values for an even count, 0 for no values.
double median(std::vector<double> values);

}  // namespace trainerd::io
