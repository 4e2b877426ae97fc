#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <system_error>

namespace trainerd::apps {

/// Checks an option's number: finite, and from `low` to `high`. `expected` follows "expected a" in the
/// message.
inline CLI::Validator number(const std::string& description, double low, bool including, double high,
                             const std::string& expected) {
  return {[=](std::string& text) {
            double value = 0;
            const bool valid = CLI::detail::lexical_cast(text, value) && std::isfinite(value) &&
                               value <= high && (including ? value >= low : value > low);
            return valid ? std::string() : "expected a " + expected + ", got '" + text + "'";
          },
          description};
}

inline CLI::Validator positive() { return number("POSITIVE", 0, false, HUGE_VAL, "number above 0"); }
inline CLI::Validator not_negative() { return number("NONNEGATIVE", 0, true, HUGE_VAL, "number from 0 on"); }
inline CLI::Validator between(double low, double high) {
  const auto text = [](double x) { return CLI::detail::to_string(x); };
  return number("FLOAT in [" + text(low) + " - " + text(high) + "]", low, true, high,
                "number from " + text(low) + " to " + text(high));
}

/// Of a 64-bit seed: the parser alone would take a sign, and the largest value for a larger one.
inline CLI::Validator whole_number() {
  return {[](std::string& text) {
            std::uint64_t value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool valid = error == std::errc() && end == text.data() + text.size();
            return valid ? std::string() : "expected a whole number from 0 to 2^64 - 1, got '" + text + "'";
          },
          "WHOLE"};
}

}  // namespace trainerd::apps
