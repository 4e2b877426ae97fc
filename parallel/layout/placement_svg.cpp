#include "parallel/layout/placement_svg.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace trainerd::parallel {
namespace {

using std::to_string;

// Pixels.
constexpr std::int64_t kCellWidth = 92, kCellHeight = 46, kGap = 6, kPadding = 10, kTitle = 22, kMargin = 16;
constexpr std::int64_t kMaxCellsAcross = 8;

struct Box {
  std::int64_t x, y, width, height;
};

std::string rect(const Box& b, const std::string& attributes) {
  return "<rect x=\"" + to_string(b.x) + "\" y=\"" + to_string(b.y) + "\" width=\"" + to_string(b.width) +
         "\" height=\"" + to_string(b.height) + "\" rx=\"5\" " + attributes + "/>\n";
}

std::string escaped(const std::string& words) {
  std::string out;
  for (const char c : words)
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

std::string text(std::int64_t x, std::int64_t y, const std::string& kind, const std::string& words) {
  return "<text x=\"" + to_string(x) + "\" y=\"" + to_string(y) + "\" class=\"" + kind + "\">" +
         escaped(words) + "</text>\n";
}

/// Light enough for dark labels on every hue. Neighbouring stages get neighbouring hues.
std::string stage_fill(std::int64_t stage, std::int64_t stages) {
  const auto hue = static_cast<std::int64_t>(std::lround(
      210.0 + 300.0 * static_cast<double>(stage) / static_cast<double>(std::max<std::int64_t>(stages, 1))));
  return "fill=\"hsl(" + to_string(hue % 360) + ",65%,78%)\"";
}

/// "tp1 dp0": the axes with more than one rank, except pp, which is shown by colour.
std::string coordinates(const ProcessGrid& grid, std::int64_t rank) {
  const ProcessGrid::Coordinate c = grid.coordinate(rank);
  std::string words;
  for (const Axis axis : grid.order())
    if (axis != Axis::pp && grid.size(axis) > 1)
      words.append(words.empty() ? "" : " ")
          .append(to_string(axis))
          .append(to_string(c[static_cast<std::size_t>(axis)]));
  return words;
}

}  // namespace

std::string placement_svg(const PlacedGrid& placed) {
  const ProcessGrid& grid = placed.grid;
  const std::int64_t per_node = placed.topology.devices_per_node;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> rank_at;
  std::int64_t nodes = 0;
  for (std::int64_t rank = 0; rank < grid.ranks(); ++rank) {
    const DeviceLocation& location = placed.placement[rank];
    rank_at[{location.node, location.device}] = rank;
    nodes = std::max(nodes, location.node + 1);
  }

  const std::int64_t across = std::min(per_node, kMaxCellsAcross);
  const std::int64_t down = (per_node + across - 1) / across;
  const std::int64_t node_width = 2 * kPadding + across * kCellWidth + (across - 1) * kGap;
  const std::int64_t node_height = kPadding + kTitle + down * kCellHeight + (down - 1) * kGap + kPadding;
  const std::int64_t stages = grid.size(Axis::pp);
  const std::int64_t legend_rows = (stages + kMaxCellsAcross - 1) / kMaxCellsAcross;
  const std::int64_t legend_columns = std::min(stages, kMaxCellsAcross);
  const std::int64_t legend_width = legend_columns * (kCellWidth + kGap);
  const std::int64_t width = 2 * kMargin + std::max({node_width, legend_width, std::int64_t{420}});
  const std::int64_t top = kMargin + kTitle;
  const std::int64_t legend_top = top + nodes * (node_height + kGap) + kGap;
  const std::int64_t height = legend_top + legend_rows * (kTitle + kGap) + kMargin;

  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + to_string(width) + " " +
                    to_string(height) + "\" width=\"" + to_string(width) + "\" height=\"" +
                    to_string(height) +
                    "\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n"
                    "<style>.page{fill:#24292f}.cell{fill:#1b1f24;text-anchor:middle}.rank{font-weight:600}"
                    ".node{fill:none;stroke:#8c959f}.idle{fill:none;stroke:#8c959f;stroke-dasharray:3 3}"
                    "@media (prefers-color-scheme:dark){.page{fill:#d0d7de}}</style>\n";
  out += text(
      kMargin, kMargin + 10, "page",
      to_string(grid.ranks()) + " ranks on " + placed.topology.name + ", order " + to_string(grid.order()));
  for (std::int64_t node = 0; node < nodes; ++node) {
    const std::int64_t y = top + node * (node_height + kGap);
    out += rect({kMargin, y, node_width, node_height}, "class=\"node\"");
    out += text(kMargin + kPadding, y + kPadding + 10, "page", "node " + to_string(node));
    for (std::int64_t device = 0; device < per_node; ++device) {
      const Box cell{kMargin + kPadding + device % across * (kCellWidth + kGap),
                     y + kPadding + kTitle + device / across * (kCellHeight + kGap), kCellWidth, kCellHeight};
      const auto found = rank_at.find({node, device});
      if (found == rank_at.end()) {
        out += rect(cell, "class=\"idle\"");
        continue;
      }
      const std::int64_t stage = grid.coordinate(found->second)[static_cast<std::size_t>(Axis::pp)];
      out += rect(cell, stage_fill(stage, stages));
      out += text(cell.x + kCellWidth / 2, cell.y + 19, "cell rank", "rank " + to_string(found->second));
      out += text(cell.x + kCellWidth / 2, cell.y + 36, "cell", coordinates(grid, found->second));
    }
  }
  for (std::int64_t stage = 0; stage < stages && stages > 1; ++stage) {
    const std::int64_t x = kMargin + stage % kMaxCellsAcross * (kCellWidth + kGap);
    const std::int64_t y = legend_top + stage / kMaxCellsAcross * (kTitle + kGap);
    out += rect({x, y, 16, 16}, stage_fill(stage, stages));
    out += text(x + 22, y + 12, "page", "stage " + to_string(stage));
  }
  return out + "</svg>\n";
}

}  // namespace trainerd::parallel
