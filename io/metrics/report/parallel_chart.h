#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainerd::io {

/// One axis of a parallel-coordinates chart: numbers, or words in a given order.
struct ParallelAxis {
  std::string name;
  std::vector<std::string> words = {};  ///< if not empty, a value is an index into these
  bool log = false;                     ///< logarithmic; numbers must be > 0
  std::vector<double> ticks = {};       ///< for numbers; empty: round ones
};

/// One line (for example a job): a value per axis, from left to right. The line ends at the first missing
/// value.
struct ParallelLine {
  std::vector<std::optional<double>> values;
  std::optional<double> shade = {};  ///< 0 (best) to 1; none: drawn faint
  bool best = false;                 ///< drawn on top, with a wide stroke
  std::string hover;
};

struct ParallelChart {
  std::string title;
  std::vector<ParallelAxis> axes;
  std::vector<ParallelLine> lines;
};

/// Returns SVG text for a page with the report's style (style.h) and `parallel_style`; empty if there is no
/// axis.
std::string draw(const ParallelChart& chart);
/// Returns the additional rules for the page's style sheet.
std::string parallel_style();

}  // namespace trainerd::io
