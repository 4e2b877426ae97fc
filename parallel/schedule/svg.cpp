#include "parallel/schedule/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace trainerd::parallel {
namespace {

// Pixels.
constexpr double kWidth = 1120, kRow = 26, kRowGap = 4, kLeft = 76, kMargin = 18, kHead = 64, kDigit = 6.6;
constexpr double kMinUnit = 4, kMaxUnit = 40;

using Rgb = std::array<int, 3>;

/// Appearance of a cell: its meaning and its colour, light enough for dark digits on every background.
struct Look {
  const char* name;
  Rgb color;
};
constexpr Look kForward{"forward", {116, 172, 242}};
constexpr Look kInputGrad{"input gradient", {247, 176, 98}};
constexpr Look kWeightGrad{"weight gradient", {128, 203, 150}};
constexpr Look kCommunication{"communication", {176, 116, 206}};

constexpr const char* kStyle = R"(<style>
.sched-page { fill: #ffffff; } .sched-bubble { fill: #e6eaf0; } .sched-text { fill: #344054; }
.sched-cell { fill: #101828; text-anchor: middle; }
@media (prefers-color-scheme: dark) {
.sched-page { fill: #10161f; } .sched-bubble { fill: #2b3544; } .sched-text { fill: #d3dae6; } }
</style>
)";

std::string number(double value) {
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%.6g", value);
  return digits.data();
}

std::string escaped(const std::string& words) {
  std::string out;
  for (const char c : words)
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

std::string text(double x, double y, double size, const char* style, const std::string& words) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" font-size=\"" + number(size) + "\" class=\"" +
         style + "\">" + escaped(words) + "</text>\n";
}

struct Box {
  double x, y, width, height;
};

/// `paint` is an attribute: a fill or a class.
std::string rect(const Box& b, const std::string& paint) {
  return "<rect x=\"" + number(b.x) + "\" y=\"" + number(b.y) + "\" width=\"" + number(b.width) +
         "\" height=\"" + number(b.height) + "\" " + paint + "/>";
}

/// Colour of virtual stage `turn` of `turns`: full for the first, mixed with white for later ones.
std::string fill(const Look& look, int turn, int turns) {
  const double white = 0.75 * turn / turns;
  std::string paint = "fill=\"rgb(";
  for (std::size_t i = 0; i < look.color.size(); ++i)
    paint += (i == 0 ? "" : ",") + std::to_string(std::lround(look.color[i] + white * (255 - look.color[i])));
  return paint + ")\"";
}

std::vector<const Look*> looks_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
    case ActionKind::forward_only: return {&kForward};
    case ActionKind::backward: return {&kInputGrad, &kWeightGrad};
    case ActionKind::backward_input: return {&kInputGrad};
    case ActionKind::backward_weight: return {&kWeightGrad};
    default: return {};
  }
}

/// Draws a computation; a fused backward gets the colours of both gradients. Hovering shows the action.
std::string cell(const TimedAction& timed, const Box& box, int turn, int turns) {
  const std::vector<const Look*> looks = looks_of(timed.action.kind);
  std::string out = "<g><title>" + describe(timed.action) + ", " + number(timed.start) + " to " +
                    number(timed.end) + "</title>";
  const double part = box.width / static_cast<double>(looks.size());
  for (std::size_t i = 0; i < looks.size(); ++i)
    out +=
        rect({box.x + part * static_cast<double>(i), box.y, part, box.height}, fill(*looks[i], turn, turns));
  const std::string words = std::to_string(timed.action.microbatch);
  if (box.width >= kDigit * static_cast<double>(words.size()) + 2)
    out += text(box.x + box.width / 2, box.y + box.height / 2 + 4, 11, "sched-cell", words);
  return out + "</g>\n";
}

/// Draws a message in transfer, as a line below its sender.
std::string message(const TimedAction& sent, double transfer, double y, double scale) {
  return "<g><title>" + describe(sent.action) + ", " + number(sent.end) + " to " +
         number(sent.end + transfer) + "</title>" +
         rect({kLeft + scale * sent.end, y + kRow + 0.5, scale * transfer, kRowGap - 1},
              fill(kCommunication, 0, 1)) +
         "</g>\n";
}

std::string legend_entry(double& x, const std::string& paint, const std::string& name) {
  const std::string out = rect({x, 42, 12, 12}, paint) + text(x + 18, 52, 12, "sched-text", name);
  x += 18 + kDigit * static_cast<double>(name.size()) + 20;
  return out;
}

std::string legend(const Timeline& timeline, int turns) {
  std::string out;
  double x = kMargin;
  for (const Look* look : {&kForward, &kInputGrad, &kWeightGrad}) {
    const auto shows = [&](const TimedAction& timed) {
      const auto looks = looks_of(timed.action.kind);
      return std::find(looks.begin(), looks.end(), look) != looks.end();
    };
    if (std::any_of(timeline.ranks.begin(), timeline.ranks.end(),
                    [&](const auto& list) { return std::any_of(list.begin(), list.end(), shows); }))
      out += legend_entry(x, fill(*look, 0, 1), look->name);
  }
  for (int turn = 1; turn < turns; ++turn)
    out += legend_entry(x, fill(kForward, turn, turns), "virtual stage " + std::to_string(turn));
  if (timeline.transfer > 0) out += legend_entry(x, fill(kCommunication, 0, 1), kCommunication.name);
  return out + legend_entry(x, "class=\"sched-bubble\"", "bubble");
}

}  // namespace

std::string schedule_svg(const Timeline& timeline, const std::string& title) {
  const int stages = static_cast<int>(timeline.ranks.size());
  int turns = 1;
  double shortest = timeline.makespan;
  for (const auto& list : timeline.ranks)
    for (const TimedAction& timed : list) {
      turns = std::max(turns, timed.action.chunk / std::max(stages, 1) + 1);
      if (!looks_of(timed.action.kind).empty()) shortest = std::min(shortest, timed.end - timed.start);
    }
  // Wide enough to show the shortest computation, and no wider than a page if possible.
  const double scale = std::clamp((kWidth - kLeft - kMargin) / std::max(timeline.makespan, 1e-30),
                                  kMinUnit / std::max(shortest, 1e-30), kMaxUnit / std::max(shortest, 1e-30));
  const double chart = scale * timeline.makespan;
  const double width = std::max(kLeft + chart + kMargin, 640.0);
  const double height = kHead + stages * (kRow + kRowGap) + kMargin;
  const std::string size = number(width) + " " + number(height);

  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + size + "\" width=\"" +
                    number(width) + "\" height=\"" + number(height) +
                    "\" role=\"img\" font-family=\"system-ui, sans-serif\">\n";
  out += "<title>" + escaped(title) + "</title>\n" + kStyle;
  out += rect({0, 0, width, height}, "rx=\"8\" class=\"sched-page\"") + "\n";
  out += text(kMargin, 26, 15, "sched-text",
              title + ": bubble " + number(std::round(1000 * timeline.bubble_fraction) / 10) +
                  "%, makespan " + number(timeline.makespan));
  out += legend(timeline, turns);
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const double y = kHead + static_cast<double>(rank) * (kRow + kRowGap);
    out += text(kMargin, y + kRow / 2 + 4, 12, "sched-text", "rank " + std::to_string(rank));
    out += rect({kLeft, y, chart, kRow}, "class=\"sched-bubble\"") + "\n";
    const std::vector<TimedAction>& list = timeline.ranks[rank];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const TimedAction& timed = list[i];
      if (is_send(timed.action.kind) && timeline.transfer > 0)
        out += message(timed, timeline.transfer, y, scale);
      if (looks_of(timed.action.kind).empty()) continue;
      const bool lower = i > 0 && take_turns(list[i - 1].action, timed.action),
                 upper = i + 1 < list.size() && take_turns(timed.action, list[i + 1].action);
      const double half = kRow / 2;
      const Box box{kLeft + scale * timed.start, lower ? y + half : y,
                    std::max(scale * (timed.end - timed.start) - 1, 0.5), lower || upper ? half : kRow};
      out += cell(timed, box, timed.action.chunk / stages, turns);
    }
  }
  return out + "</svg>\n";
}

}  // namespace trainerd::parallel
