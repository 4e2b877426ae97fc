#include "io/text/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace trainerd::io {
namespace {

// Formats three significant digits, never with an exponent below a thousand.
std::string three_digits(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

struct TimeUnit {
  std::string_view name;
  double seconds;
};
// Largest first.
constexpr std::array<TimeUnit, 5> kTimeUnits{{{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}, {"ms", 1e-3}}};

}  // namespace

std::string with_commas(std::int64_t value) {
  std::string digits = std::to_string(value);
  const std::size_t sign = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > sign + 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  constexpr std::array<const char*, 6> kPrefixes{"", "k", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  while (std::abs(value) >= 999.5 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  if (prefix == 0 && value == std::floor(value)) return fmt::format("{:.0f}", value);
  return three_digits(value) + kPrefixes[prefix];
}

std::string with_unit(double value, const std::string& unit) {
  std::string text = short_number(value);
  const std::size_t digits = text.find_last_of("0123456789") + 1;
  return text.substr(0, digits) + " " + text.substr(digits) + unit;
}

std::string short_bytes(std::int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<const char*, 6> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return three_digits(value) + " " + kUnits[unit];
}

std::string short_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e10) return "?";
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d{:02}h", whole / 86400, whole / 3600 % 24);
}

std::optional<double> parse_duration(std::string_view text) {
  if (text.empty()) return std::nullopt;
  double seconds = 0;
  std::size_t next_unit = 0;  // each unit at most once, in descending order
  while (!text.empty()) {
    // Accepts only digits and a point: from_chars would also accept a sign, "inf" and "nan".
    const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
    double number = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + digits, number, std::chars_format::fixed);
    if (error != std::errc() || end != text.data() + digits) return std::nullopt;
    text.remove_prefix(digits);
    const std::string_view name = text.substr(0, std::min(text.find_first_of("0123456789."), text.size()));
    while (next_unit < kTimeUnits.size() && kTimeUnits[next_unit].name != name) ++next_unit;
    if (next_unit == kTimeUnits.size()) return std::nullopt;
    seconds += number * kTimeUnits[next_unit++].seconds;
    text.remove_prefix(name.size());
  }
  return std::isfinite(seconds) ? std::optional(seconds) : std::nullopt;
}

std::string duration_pattern() {
  std::string pattern = "^(?=.)";  // not empty
  for (const TimeUnit& unit : kTimeUnits)
    pattern.append("(([0-9]+[.]?[0-9]*|[.][0-9]+)").append(unit.name).append(")?");
  return pattern + "$";
}

namespace {

/// Formats seconds with the fewest digits and without an exponent.
std::string plain_seconds(double seconds) {
  std::string text = fmt::format("{}s", seconds);
  for (int digits = 0; parse_duration(text) != seconds && digits < 340; ++digits)
    text = fmt::format("{:.{}f}s", seconds, digits);
  return text;
}

}  // namespace

std::string duration_text(double seconds) {
  std::string text;
  double left = seconds;
  for (const auto& [name, length] : kTimeUnits) {
    if (name == "s") break;
    if (const double count = std::floor(left / length); count > 0) {
      text += fmt::format("{:.0f}{}", count, name);
      left -= count * length;
    }
  }
  if (left > 0 || text.empty()) text += plain_seconds(left);
  return parse_duration(text) == seconds ? text : plain_seconds(seconds);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace trainerd::io
