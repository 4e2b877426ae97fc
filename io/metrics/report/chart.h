#pragma once

#include <functional>
#include <string>
#include <vector>

// Charts as SVG text, coloured by the page's CSS classes ("c0", "c1", ...), with values on hover through
// <title>: no scripts.

namespace trainerd::io {

struct ChartPoint {
  double x = 0;
  double low = 0, middle = 0, high = 0;  ///< equal where one value stands for itself
};

struct ChartLine {
  std::string label;
  int color = 0;
  bool dots = false;  ///< few points, marked
  std::vector<ChartPoint> points;
};

enum class ChartScale : unsigned char { from_zero, fitted, logarithmic };

/// A vertical line with a name.
struct ChartMark {
  double x = 0;
  std::string name;
};

struct LineChart {
  std::string title;
  ChartScale scale = ChartScale::fitted;
  std::function<std::string(double)> format;  ///< of values, for ticks and hover
  std::vector<ChartLine> lines;
  std::vector<ChartMark> marks = {};
};

/// Empty when no line has a point.
std::string draw(const LineChart& chart);

struct StackedColumn {
  double begin = 0, end = 0;   ///< on the x axis
  std::vector<double> values;  ///< >= 0, stacked from the bottom
  std::string hover;
};

/// Without outliers, columns many times higher than most are cut at the top.
enum class StackedScale : unsigned char { all, without_outliers };

struct StackedChart {
  std::string title;
  std::function<std::string(double)> format;
  std::vector<StackedColumn> columns;
  std::vector<std::string> labels;  ///< of each value; one that is zero everywhere is left out of the legend
  StackedScale scale = StackedScale::all;
};

std::string draw(const StackedChart& chart);

/// Round numbers, 1, 2 or 5 times a power of ten apart, about `count` of them, that lie in [low, high].
std::vector<double> round_ticks(double low, double high, int count);

std::string escape_html(const std::string& text);

}  // namespace trainerd::io
