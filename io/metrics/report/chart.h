#pragma once

#include <functional>
#include <string>
#include <vector>

// Charts as SVG text. The page's CSS classes ("c0", "c1", ...) give the colours, and <title> elements show
// values on hover. No scripts.

namespace trainerd::io {

struct ChartPoint {
  double x = 0;
  double low = 0, middle = 0, high = 0;  ///< equal for a single value
};

struct ChartLine {
  std::string label;
  int color = 0;
  bool dots = false;  ///< draws points instead of a curve, for few points
  std::vector<ChartPoint> points;
};

enum class ChartScale : unsigned char { from_zero, fitted, logarithmic };

/// A named vertical line.
struct ChartMark {
  double x = 0;
  std::string name;
};

struct LineChart {
  std::string title;
  ChartScale scale = ChartScale::fitted;
  std::function<std::string(double)> format;  ///< formats values for ticks and hover texts
  std::vector<ChartLine> lines;
  std::vector<ChartMark> marks = {};
};

/// Returns an empty text if no line has a point.
std::string draw(const LineChart& chart);

struct StackedColumn {
  double begin = 0, end = 0;   ///< on the x axis
  std::vector<double> values;  ///< >= 0, stacked from the bottom
  std::string hover;
};

/// without_outliers: columns many times higher than most are cut at the top.
enum class StackedScale : unsigned char { all, without_outliers };

struct StackedChart {
  std::string title;
  std::function<std::string(double)> format;
  std::vector<StackedColumn> columns;
  std::vector<std::string> labels;  ///< per value; a value that is zero everywhere is left out of the legend
  StackedScale scale = StackedScale::all;
};

std::string draw(const StackedChart& chart);

/// Returns about `count` round numbers in [low, high], at a distance of 1, 2 or 5 times a power of ten.
std::vector<double> round_ticks(double low, double high, int count);

std::string escape_html(const std::string& text);

}  // namespace trainerd::io
