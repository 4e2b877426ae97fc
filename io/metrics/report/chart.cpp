#include "io/metrics/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace trainerd::io {
namespace {

// Drawing units; the browser scales the picture to the column.
constexpr double kWidth = 720, kHeight = 260, kLeft = 62, kRight = 22, kTop = 10, kBottom = 30;
constexpr double kPlotRight = kWidth - kRight, kPlotBottom = kHeight - kBottom;
constexpr std::size_t kHoverColumns = 120;

/// Maps data to drawing units.
struct Axes {
  double x0 = 0, x1 = 1, y0 = 0, y1 = 1;
  bool logarithmic = false;

  double x(double value) const { return kLeft + (value - x0) / (x1 - x0) * (kPlotRight - kLeft); }
  double y(double value) const {
    const double at = logarithmic ? std::log10(value) : value;
    return kPlotBottom - (at - y0) / (y1 - y0) * (kPlotBottom - kTop);
  }
};

std::string number(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

// A range without width cannot be drawn: widens it around its value.
void widen(double& low, double& high) {
  if (high > low) return;
  const double by = low == 0 ? 1 : std::abs(low) * 0.1;
  low -= by;
  high += by;
}

std::vector<double> y_ticks(const Axes& axes) {
  if (!axes.logarithmic) return round_ticks(axes.y0, axes.y1, 5);
  std::vector<double> ticks, powers;
  for (int exponent = static_cast<int>(std::floor(axes.y0)); exponent <= static_cast<int>(std::ceil(axes.y1));
       ++exponent)
    for (const double step : {1.0, 2.0, 5.0}) {
      const double value = step * std::pow(10.0, exponent), at = std::log10(value);
      if (at < axes.y0 - 1e-9 || at > axes.y1 + 1e-9) continue;
      ticks.push_back(value);
      if (step == 1.0) powers.push_back(value);
    }
  // The range is less than half a decade.
  if (ticks.size() < 3) return round_ticks(std::pow(10.0, axes.y0), std::pow(10.0, axes.y1), 5);
  return ticks.size() > 7 ? powers : ticks;
}

std::string draw_axes(const Axes& axes, const std::function<std::string(double)>& format) {
  std::string out;
  for (const double tick : y_ticks(axes)) {
    const double y = axes.y(tick);
    out += fmt::format(R"(<line class="grid" x1="{}" y1="{}" x2="{}" y2="{}"/>)", number(kLeft), number(y),
                       number(kPlotRight), number(y));
    out += fmt::format(R"(<text class="y" x="{}" y="{}">{}</text>)", number(kLeft - 8), number(y + 4),
                       escape_html(format(tick)));
  }
  for (const double tick : round_ticks(axes.x0, axes.x1, 7)) {
    if (tick != std::floor(tick)) continue;  // only whole steps
    out += fmt::format(R"(<line class="tick" x1="{0}" y1="{1}" x2="{0}" y2="{2}"/>)", number(axes.x(tick)),
                       number(kPlotBottom), number(kPlotBottom + 5));
    out += fmt::format(R"(<text class="x" x="{}" y="{}">{}</text>)", number(axes.x(tick)),
                       number(kPlotBottom + 19), number(tick));
  }
  out += fmt::format(R"(<line class="axis" x1="{0}" y1="{1}" x2="{2}" y2="{1}"/>)", number(kLeft),
                     number(kPlotBottom), number(kPlotRight));
  return out + "\n";
}

std::string open_figure(const std::string& title) {
  return fmt::format("<figure><figcaption>{}</figcaption>\n", escape_html(title));
}

std::string open_svg(const std::string& title) {
  return fmt::format(R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}">)", number(kWidth),
                     number(kHeight), escape_html(title)) +
         "\n";
}

std::string legend_entry(int color, const std::string& label) {
  return fmt::format(R"(<span><i class="b{}"></i>{}</span> )", color, escape_html(label));
}

std::string draw_line(const ChartLine& line, const Axes& axes) {
  std::string path, band_up, band_down, dots, out;
  for (const ChartPoint& p : line.points) {
    const std::string x = number(axes.x(p.x));
    path += fmt::format("{}{} {}", path.empty() ? "M" : "L", x, number(axes.y(p.middle)));
    band_up += fmt::format("{}{} {}", band_up.empty() ? "M" : "L", x, number(axes.y(p.high)));
    band_down.insert(0, fmt::format("L{} {}", x, number(axes.y(p.low))));
    if (line.dots || line.points.size() == 1)
      dots += fmt::format(R"(<circle class="f{}" cx="{}" cy="{}" r="3.5"/>)", line.color, x,
                          number(axes.y(p.middle)));
  }
  const auto is_wide = [](const ChartPoint& p) { return p.high > p.low; };
  if (std::any_of(line.points.begin(), line.points.end(), is_wide))
    out += fmt::format(R"(<path class="band f{}" d="{}{}Z"/>)", line.color, band_up, band_down);
  return out + fmt::format(R"(<path class="line s{}" d="{}"/>)", line.color, path) + dots + "\n";
}

std::string hover_column(double x, double width, const std::string& text) {
  return fmt::format(R"(<rect class="hover" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>)",
                     number(x), number(kTop), number(width), number(kPlotBottom - kTop), escape_html(text));
}

// Draws hover texts for the points of the first line, thinned; each column shows the values there.
std::string draw_hover(const LineChart& chart, const Axes& axes) {
  std::string out;
  for (const ChartLine& line : chart.lines) {
    if (line.points.empty() || line.dots) continue;
    const std::size_t stride = (line.points.size() + kHoverColumns - 1) / kHoverColumns;
    const double width =
        (kPlotRight - kLeft) / static_cast<double>((line.points.size() + stride - 1) / stride);
    for (std::size_t i = 0; i < line.points.size(); i += stride) {
      const ChartPoint& p = line.points[i];
      out += hover_column(axes.x(p.x) - width / 2, width,
                          fmt::format("step {}: {} {}", number(p.x), line.label, chart.format(p.middle)));
    }
    break;
  }
  for (const ChartLine& line : chart.lines)
    for (const ChartPoint& p : line.points)
      if (line.dots)
        out += fmt::format(
            R"(<circle class="hover" cx="{}" cy="{}" r="8"><title>{}</title></circle>)", number(axes.x(p.x)),
            number(axes.y(p.middle)),
            escape_html(fmt::format("step {}: {} {}", number(p.x), line.label, chart.format(p.middle))));
  return out + "\n";
}

std::string draw_marks(const std::vector<ChartMark>& marks, const Axes& axes) {
  std::string out;
  for (const ChartMark& mark : marks)
    if (mark.x > axes.x0 && mark.x < axes.x1)
      out +=
          fmt::format(R"(<line class="mark" x1="{0}" y1="{1}" x2="{0}" y2="{2}"><title>{3}</title></line>)",
                      number(axes.x(mark.x)), number(kTop), number(kPlotBottom), escape_html(mark.name));
  return out;
}

// Returns the height above which columns are cut: twice the 90th percentile, or no cut.
double height_shown(const StackedChart& chart, std::vector<double> heights) {
  const double highest = *std::max_element(heights.begin(), heights.end());
  if (chart.scale == StackedScale::all) return highest;
  const auto most = heights.begin() + static_cast<std::ptrdiff_t>(9 * (heights.size() - 1) / 10);
  std::nth_element(heights.begin(), most, heights.end());
  return *most > 0 ? std::min(highest, 2 * *most) : highest;
}

Axes axes_for(const LineChart& chart) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Axes axes{.x0 = kInfinity, .x1 = -kInfinity, .y0 = kInfinity, .y1 = -kInfinity};
  for (const ChartLine& line : chart.lines)
    for (const ChartPoint& p : line.points) {
      axes.x0 = std::min(axes.x0, p.x);
      axes.x1 = std::max(axes.x1, p.x);
      axes.y0 = std::min(axes.y0, p.low);
      axes.y1 = std::max(axes.y1, p.high);
    }
  axes.logarithmic = chart.scale == ChartScale::logarithmic && axes.y0 > 0;
  if (axes.logarithmic) {
    axes.y0 = std::log10(axes.y0);
    axes.y1 = std::log10(axes.y1);
  }
  if (chart.scale == ChartScale::from_zero) axes.y0 = std::min(axes.y0, 0.0);
  widen(axes.x0, axes.x1);
  widen(axes.y0, axes.y1);
  const double room = (axes.y1 - axes.y0) * 0.05;
  axes.y1 += room;
  if (chart.scale != ChartScale::from_zero) axes.y0 -= room;
  return axes;
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::vector<double> round_ticks(double low, double high, int count) {
  const double rough = (high - low) / count, power = std::pow(10.0, std::floor(std::log10(rough)));
  const double lead = rough / power;
  const double step = power * (lead <= 1.5 ? 1 : lead <= 3.5 ? 2 : lead <= 7.5 ? 5 : 10);
  std::vector<double> ticks;
  const double slack = 1e-9 * std::max(std::abs(low), std::abs(high));
  for (double n = std::ceil((low - slack) / step); n * step <= high + slack && ticks.size() < 50; ++n)
    ticks.push_back(n * step + 0.0);
  return ticks;
}

std::string draw(const LineChart& chart) {
  const auto is_empty = [](const ChartLine& line) { return line.points.empty(); };
  if (std::all_of(chart.lines.begin(), chart.lines.end(), is_empty)) return "";
  const Axes axes = axes_for(chart);
  std::string out = open_figure(chart.title), legend;
  for (const ChartLine& line : chart.lines)
    if (!line.points.empty()) legend += legend_entry(line.color, line.label);
  if (chart.lines.size() > 1) out += "<div class=\"legend\">" + legend + "</div>\n";
  out += open_svg(chart.title) + draw_axes(axes, chart.format) + draw_marks(chart.marks, axes);
  for (const ChartLine& line : chart.lines)
    if (!line.points.empty()) out += draw_line(line, axes);
  return out + draw_hover(chart, axes) + "</svg></figure>\n";
}

std::string draw(const StackedChart& chart) {
  if (chart.columns.empty()) return "";
  const std::size_t layers = chart.labels.size();
  std::vector<double> totals(layers);
  Axes axes{.x0 = chart.columns.front().begin, .x1 = chart.columns.back().end, .y0 = 0, .y1 = 0};
  std::vector<double> heights;
  for (const StackedColumn& column : chart.columns) {
    heights.push_back(std::accumulate(column.values.begin(), column.values.end(), 0.0));
    for (std::size_t i = 0; i < layers; ++i) totals[i] += column.values[i];
  }
  const double shown = height_shown(chart, heights);
  axes.y1 = shown * 1.05;
  if (axes.y1 == 0) return "";
  const auto is_cut = [shown](double height) { return height > shown; };
  const auto cut = std::count_if(heights.begin(), heights.end(), is_cut);
  std::string out = open_figure(chart.title) + "<div class=\"legend\">";
  for (std::size_t i = 0; i < layers; ++i)
    if (totals[i] > 0) out += legend_entry(static_cast<int>(i), chart.labels[i]);
  if (cut > 0) out += fmt::format("<span>{} higher, cut at the top</span>", cut);
  out += "</div>\n" + open_svg(chart.title);
  std::vector<double> base(chart.columns.size());
  for (std::size_t i = 0; i < layers; ++i) {
    if (totals[i] == 0) continue;
    std::string up, down;
    for (std::size_t c = 0; c < chart.columns.size(); ++c) {
      const StackedColumn& column = chart.columns[c];
      const std::string begin = number(axes.x(column.begin)), end = number(axes.x(column.end));
      const std::string bottom = number(axes.y(base[c]));
      base[c] = std::min(base[c] + column.values[i], axes.y1);
      const std::string top = number(axes.y(base[c]));
      up += fmt::format("{}{} {}L{} {}", up.empty() ? "M" : "L", begin, top, end, top);
      down.insert(0, fmt::format("L{} {}L{} {}", end, bottom, begin, bottom));
    }
    out += fmt::format(R"(<path class="f{}" d="{}{}Z"/>)", i, up, down) + "\n";
  }
  out += draw_axes(axes, chart.format);
  for (const StackedColumn& column : chart.columns)
    out += hover_column(axes.x(column.begin), axes.x(column.end) - axes.x(column.begin), column.hover);
  return out + "</svg></figure>\n";
}

}  // namespace trainerd::io
