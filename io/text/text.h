#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Numbers as people read them.

namespace trainerd::io {

/// 1234567 -> "1,234,567".
std::string with_commas(std::int64_t value);
/// Three significant digits and a decimal prefix: 10423000 -> "10.4M", 9120 -> "9.12k".
std::string short_number(double value);
/// The same before a unit: (5.74e11, "FLOP/s") -> "574 GFLOP/s".
std::string with_unit(double value, const std::string& unit);
/// "512 B", "3.9 MiB".
std::string short_bytes(std::int64_t bytes);
/// "850 ms", "12.3 s", "4m05s", "2h07m", "3d04h".
std::string short_duration(double seconds);

/// Seconds of a duration as people write it: whole or decimal numbers, each with one of the units ms, s, m,
/// h, d, largest unit first: "30s", "1.5h", "3h50m". None for anything else, a number without a unit
/// included.
std::optional<double> parse_duration(std::string_view text);
/// The regular expression (ECMA-262) of the texts that `parse_duration` takes.
std::string duration_pattern();
/// The shortest such text that `parse_duration` reads back to the same value: "10m", "1h30m", "2.5s".
/// `seconds` is finite and >= 0.
std::string duration_text(double seconds);

/// The middle value; the mean of the two middle ones for an even count. 0 for none.
double median(std::vector<double> values);

}  // namespace trainerd::io
