#include "io/metrics/report/parallel_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/metrics/report/chart.h"

namespace trainerd::io {
namespace {

constexpr double kAxesWidth = 1180, kAxesHeight = 380, kAxesLeft = 80, kAxesRight = 80, kAxesTop = 40,
                 kAxesBottom = 24;

// Size of a tick's label.
constexpr double kLabelHeight = 14, kCharacterWidth = 7;

constexpr double kFineDecades = 2, kMaxDecades = 8;

/// An axis with its position and range.
class PlacedAxis {
 public:
  PlacedAxis(const ParallelAxis& axis, double x, const std::vector<ParallelLine>& lines, std::size_t index)
      : axis_(axis), x_(x) {
    if (!axis.words.empty()) {
      high_ = std::max(1.0, static_cast<double>(axis.words.size()) - 1);
      return;
    }
    bool any = false;
    for (const ParallelLine& line : lines) {
      if (index >= line.values.size() || !line.values[index]) continue;
      const double value = scaled(*line.values[index]);
      low_ = any ? std::min(low_, value) : value;
      high_ = any ? std::max(high_, value) : value;
      any = true;
    }
    if (low_ < high_) return;
    const double room = low_ == 0 ? 1 : std::abs(low_) * 0.1;  // a single value is drawn in the middle
    low_ -= room, high_ += room;
  }

  double x() const { return x_; }
  double y(double value) const {
    return kAxesHeight - kAxesBottom -
           (kAxesHeight - kAxesBottom - kAxesTop) * (scaled(value) - low_) / (high_ - low_);
  }

  /// Draws the axis, its name and its tick marks.
  std::string lines_svg() const {
    std::string out = fmt::format(
        "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text class=\"x name\" x=\"{0:.1f}\" y=\"{3}\">{4}</text>\n",
        x_, kAxesTop, kAxesHeight - kAxesBottom, kAxesTop - 18, escape_html(axis_.name));
    for (const auto& [value, text] : ticks())
      out += fmt::format("<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                         x_ - 4, x_ + 4, y(value), y(value));
    return out;
  }

  /// Draws the labels of the ticks that have room.
  std::string labels_svg() const {
    std::string out;
    std::vector<double> taken;
    for (const auto& [value, text] : ticks()) {
      const double at = y(value);
      if (std::any_of(taken.begin(), taken.end(),
                      [&](double other) { return std::abs(at - other) < kLabelHeight; }))
        continue;
      taken.push_back(at);
      // A background that hides the jobs' lines behind the text.
      const double width = kCharacterWidth * static_cast<double>(text.size()) + 6;
      out += fmt::format(
          "<rect class=\"plate\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" rx=\"3\"/>"
          "<text class=\"y\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
          x_ - 6 - width, at - kLabelHeight / 2, width, kLabelHeight, x_ - 9, at + 4, escape_html(text));
    }
    return out;
  }

 private:
  double scaled(double value) const { return axis_.log ? std::log10(value) : value; }

  std::vector<std::pair<double, std::string>> ticks() const {
    std::vector<std::pair<double, std::string>> ticks;
    for (std::size_t i = 0; i < axis_.words.size(); ++i)
      ticks.emplace_back(static_cast<double>(i), axis_.words[i]);
    for (const double value : axis_.ticks) ticks.emplace_back(value, fmt::format("{:.4g}", value));
    if (!ticks.empty()) return ticks;
    if (axis_.log) return decades();
    for (const double value : round_ticks(low_, high_, 5))
      ticks.emplace_back(value, fmt::format("{:.4g}", value));
    return ticks;
  }

  // Returns 1, 2 and 5 of each decade if there is room, else powers of ten.
  std::vector<std::pair<double, std::string>> decades() const {
    const bool wide = high_ - low_ > kFineDecades;
    const double apart = std::ceil((high_ - low_) / kMaxDecades);
    std::vector<std::pair<double, std::string>> ticks;
    for (double decade = std::floor(low_); decade <= high_; decade += wide ? apart : 1)
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double value = digit * std::pow(10.0, decade), at = std::log10(value);
        if (at >= low_ - 1e-9 && at <= high_ + 1e-9 && (digit == 1.0 || !wide))
          ticks.emplace_back(value, fmt::format("{:.3g}", value));
      }
    return ticks;
  }

  const ParallelAxis& axis_;
  double x_, low_ = 0, high_ = 0;
};

std::string line_svg(const ParallelLine& line, const std::vector<PlacedAxis>& axes) {
  std::string points;
  for (std::size_t i = 0; i < std::min(axes.size(), line.values.size()) && line.values[i]; ++i)
    points +=
        fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", axes[i].x(), axes[i].y(*line.values[i]));
  if (points.empty()) return "";
  const std::string color =
      line.shade ? fmt::format(" style=\"stroke: color-mix(in oklab, var(--c0), var(--c1) {:.0f}%)\"",
                               100 * *line.shade)
                 : "";
  return fmt::format("<polyline class=\"job{}{}\" points=\"{}\"{}><title>{}</title></polyline>\n",
                     line.best ? " best" : "", line.shade ? "" : " faint", points, color,
                     escape_html(line.hover));
}

}  // namespace

std::string draw(const ParallelChart& chart) {
  if (chart.axes.empty()) return "";
  std::vector<PlacedAxis> axes;
  const double gap =
      (kAxesWidth - kAxesLeft - kAxesRight) / std::max<double>(1, static_cast<double>(chart.axes.size()) - 1);
  for (std::size_t i = 0; i < chart.axes.size(); ++i)
    axes.emplace_back(chart.axes[i], kAxesLeft + gap * static_cast<double>(i), chart.lines, i);
  std::string out = fmt::format(
      "<figure class=\"parallel\"><figcaption>{}</figcaption><div class=\"legend\"><span><i "
      "class=\"b0\"></i>best</span><span><i class=\"b1\"></i>worst</span></div>\n<svg viewBox=\"0 0 {} {}\" "
      "role=\"img\" aria-label=\"{}\">\n",
      escape_html(chart.title), kAxesWidth, kAxesHeight, escape_html(chart.title));
  // Faint lines at the bottom, the best one on top.
  for (const int layer : {0, 1, 2})
    for (const ParallelLine& line : chart.lines)
      if (layer == (line.best ? 2 : line.shade ? 1 : 0)) out += line_svg(line, axes);
  for (const PlacedAxis& axis : axes) out += axis.lines_svg();
  // Drawn after all axes, because a long label reaches the axis on its left.
  for (const PlacedAxis& axis : axes) out += axis.labels_svg();
  return out + "</svg></figure>\n";
}

std::string parallel_style() {
  return ".job { fill: none; stroke: var(--dim); stroke-width: 2; stroke-linejoin: round; opacity: .85; }\n"
         ".job.faint { stroke-dasharray: 4 4; opacity: .45; } .job.best { stroke-width: 4.5; opacity: 1; }\n"
         ".job:hover { stroke-width: 6; opacity: 1; } svg text.name { fill: var(--ink); font-weight: 600; }\n"
         ".plate { fill: var(--card); }\n"
         "figure.parallel { overflow-x: auto; } figure.parallel svg { min-width: 760px; cursor: default; }\n";
}

}  // namespace trainerd::io
