#include "io/top/plot.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace trainerd::io {
namespace {

// Bit of a dot in its cell, by row and column (Unicode, "Braille Patterns").
constexpr std::array<std::array<unsigned, 2>, 4> kDots{
    {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};

std::string braille(unsigned dots) {
  const unsigned code = 0x2800 + dots;
  return {static_cast<char>(0xe0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3f)),
          static_cast<char>(0x80 | (code & 0x3f))};
}

}  // namespace

std::vector<std::string> braille_plot(const std::vector<double>& values, double low, double high,
                                      std::size_t columns, std::size_t rows) {
  std::vector<std::vector<unsigned>> cells(rows, std::vector<unsigned>(columns));
  const auto dots_high = static_cast<int>(4 * rows);
  const std::size_t dots_wide = 2 * columns;
  const double range = high > low ? high - low : 1;
  int before = -1;  // height of the dot to the left; -1: none
  for (std::size_t x = 0; x < dots_wide && !values.empty(); ++x) {
    const double value = values[x * values.size() / dots_wide];
    if (!std::isfinite(value)) {
      before = -1;
      continue;
    }
    const double share = high > low ? (value - low) / range : 0.5;
    const int y = std::clamp(static_cast<int>(std::lround((1 - share) * (dots_high - 1))), 0, dots_high - 1);
    // Dots between two neighbours belong to the right one, so the curve has no gaps.
    const int from = before < 0 ? y : before + (y > before ? 1 : y < before ? -1 : 0);
    const int top = std::min(y, from), bottom = std::max(y, from);
    for (int at = top; at <= bottom; ++at)
      cells[static_cast<std::size_t>(at / 4)][x / 2] |= kDots[static_cast<std::size_t>(at % 4)][x % 2];
    before = y;
  }
  std::vector<std::string> lines;
  for (const auto& row : cells) {
    std::string& line = lines.emplace_back();
    for (const unsigned dots : row) line += dots == 0 ? " " : braille(dots);
  }
  return lines;
}

std::string bar(double share, std::size_t columns) {
  static constexpr std::array<const char*, 8> kEighths{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double cells =
      std::clamp(std::isfinite(share) ? share : 0.0, 0.0, 1.0) * static_cast<double>(columns);
  const auto eighths = static_cast<std::size_t>(std::lround(8 * cells));
  std::string out;
  for (std::size_t i = 0; i < eighths / 8; ++i) out += "█";
  return out + kEighths[eighths % 8];
}

}  // namespace trainerd::io
