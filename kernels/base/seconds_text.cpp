#include "kernels/base/seconds_text.h"

#include <array>
#include <cstdio>

namespace trainerd::base {

std::string seconds_text(double seconds) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), seconds >= 1 || seconds <= 0 ? "%.1f s" : "%.2g s", seconds);
  return text.data();
}

std::string one_decimal(double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

}  // namespace trainerd::base
