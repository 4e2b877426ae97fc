#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

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

}  // namespace trainerd::apps
