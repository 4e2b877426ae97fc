#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainerd::io {

/// One quantity of a chart of parallel coordinates: numbers, or words in their order.
struct ParallelAxis {
  std::string name;
  std::vector<std::string> words = {};  ///< not empty: a value is an index into these
  bool log = false;                     ///< of numbers > 0
  std::vector<double> ticks = {};       ///< of numbers; empty: round ones
};

/// One job, say: a value on each axis, from left to right. The line ends where the first is missing.
struct ParallelLine {
  std::vector<std::optional<double>> values;
  std::optional<double> shade = {};  ///< 0 (best) to 1; none: it is drawn faint
  bool best = false;                 ///< drawn on top, with a wide stroke
  std::string hover;
};

struct ParallelChart {
  std::string title;
  std::vector<ParallelAxis> axes;
  std::vector<ParallelLine> lines;
};

/// As SVG text for a page with the report's style (style.h) and `parallel_style`. Empty without an axis.
std::string draw(const ParallelChart& chart);
/// Its own rules of the page's style sheet.
std::string parallel_style();

}  // namespace trainerd::io
