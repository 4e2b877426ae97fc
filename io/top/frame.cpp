#include "io/top/frame.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <numeric>
#include <utility>

#include "io/text/text.h"
#include "io/top/plot.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kTwoColumns = 110;
constexpr std::size_t kUnlimitedRows = 50, kMaxCurveRows = 14;
constexpr std::size_t kGap = 3;  // between two columns of sections
constexpr double kLately = 3;    // seconds; a report of what a rank does is as old as one or two

using Lines = std::vector<Line>;

std::string time_of_day(double wall_time) {
  return wall_time > 0 ? fmt::format("{:%H:%M:%S}", fmt::gmtime(static_cast<std::time_t>(wall_time)))
                       : "        ";
}

Tone tone_of(RunState state) {
  switch (state) {
    case RunState::done: return Tone::good;
    case RunState::stopped: return Tone::warn;
    case RunState::failed:
    case RunState::lost: return Tone::bad;
    default: return Tone::run;
  }
}

Tone tone_of(RankState state) {
  switch (state) {
    case RankState::training: return Tone::good;
    case RankState::ready: return Tone::run;
    case RankState::finished: return Tone::dim;
    case RankState::dead: return Tone::bad;
    case RankState::starting: break;
  }
  return Tone::warn;
}

// Returns a rank's cell in the grid. States differ even without colours.
const char* cell_of(RankState state) {
  switch (state) {
    case RankState::training: return "■";
    case RankState::ready: return "◆";
    case RankState::finished: return "✓";
    case RankState::dead: return "✗";
    case RankState::starting: break;
  }
  return "·";
}

Tone tone_of_event(const std::string& kind) {
  if (kind == "finish") return Tone::good;
  if (kind == "failure") return Tone::bad;
  if (kind == "warning" || kind == "restart" || kind == "stop") return Tone::warn;
  return kind == "start" || kind == "resume" ? Tone::run : Tone::dim;
}

std::string words_of(const char* name) {
  std::string text = name;
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

// Also handles less than a millisecond.
std::string seconds_text(double seconds) {
  if (seconds == 0) return "0";
  return seconds < 0.0995 ? fmt::format("{:.3g} ms", 1e3 * seconds) : short_duration(seconds);
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

/// Draws the sections one after the other with a common width.
class Frame {
 public:
  Frame(const RunStatus& status, const FrameOptions& options)
      : s_(status), options_(options), width_(options.columns) {}

  std::vector<std::string> draw() {
    const bool unlimited = options_.rows == 0;
    const std::size_t rows = unlimited ? kUnlimitedRows : options_.rows;
    const bool high = rows >= 30;
    const std::size_t least = high ? 6 : 4;
    compose(rows, high, least);
    // The curve gets the rows that are left over.
    if (!unlimited && lines_.size() < rows && least < kMaxCurveRows) {
      const std::size_t more = std::min(kMaxCurveRows - least, rows - lines_.size());
      lines_.clear();
      compose(rows, high, least + more);
    }
    std::vector<std::string> out;
    for (const Line& line : lines_)
      if (out.size() < rows) out.push_back(line.text());
    return out;
  }

 private:
  void compose(std::size_t rows, bool high, std::size_t curve_rows) {
    head();
    loss(curve_rows);
    if (width_ >= kTwoColumns) {
      const std::size_t left = (width_ - kGap) / 2;
      beside(ledger(left, high ? 10 : 6), ranks(width_ - kGap - left, high ? 8 : 4), left);
    } else {
      append(ledger(width_, high ? 10 : 4));
      append(ranks(width_, high ? 6 : 2));
    }
    events(rows);
  }

  Line line(std::size_t width) const { return {width, options_.colors}; }
  Line& next() { return lines_.emplace_back(line(width_)); }
  void append(Lines lines) { std::move(lines.begin(), lines.end(), std::back_inserter(lines_)); }

  // Draws "── title ───────── figure ──".
  Line title(std::size_t width, const std::string& text, const std::string& figure = "") const {
    Line out = line(width);
    out.add("── ", Tone::dim).add(text, Tone::strong).add(" ", Tone::dim);
    const std::size_t end = figure.empty() ? 0 : columns_of(figure) + 4;
    std::string rule;
    for (std::size_t at = out.used() + end; at < width; ++at) rule += "─";
    out.add(rule, Tone::dim);
    if (!figure.empty() && out.room() >= end) out.add(" " + figure + " ").add("──", Tone::dim);
    return out;
  }

  void beside(Lines left, Lines right, std::size_t left_width) {
    const std::size_t count = std::max(left.size(), right.size());
    left.resize(count, line(left_width));
    right.resize(count, line(width_ - left_width - kGap));
    for (std::size_t i = 0; i < count; ++i) lines_.push_back(join(left[i], right[i], left_width + kGap));
  }

  // Joins two finished lines, which contain their colours.
  Line join(const Line& left, const Line& right, std::size_t column) const {
    Line out = line(width_);
    out.append_made(left).pad_to(column).append_made(right);
    return out;
  }

  void head() {
    const RunInfo& i = s_.info;
    Line& first = next();
    first.add(cut_to(i.name, width_ / 2), Tone::strong).add("  ");
    first.add(name_of(s_.state), tone_of(s_.state));
    if (s_.evaluation_progress)
      first.add(fmt::format(" {}/{}", s_.evaluation_progress->done, s_.evaluation_progress->batches),
                Tone::dim);
    if (!s_.outcome.empty()) first.add("  " + s_.outcome, Tone::dim);
    first.add_right(time_of_day(s_.now) + " UTC", Tone::dim);
    if (!options_.warning.empty()) next().add(options_.warning, Tone::warn);
    progress();
    std::string facts = i.layout;
    const auto fact = [&facts](const std::string& text) {
      if (!text.empty()) facts += (facts.empty() ? "" : " · ") + text;
    };
    if (s_.attempts > 1) fact(fmt::format("attempt {}", s_.attempts));
    if (s_.seconds > 0) fact(short_duration(s_.seconds));
    if (i.parameters > 0) fact(short_number(static_cast<double>(i.parameters)) + " parameters");
    fact(i.precision);
    fact(i.host);
    if (!facts.empty()) next().add(facts, Tone::dim);
    figures();
  }

  void progress() {
    const std::int64_t steps = s_.info.steps;
    const double done = steps > 0 ? static_cast<double>(s_.step) / static_cast<double>(steps) : 0;
    const std::string count = steps > 0 ? fmt::format("step {}/{}  {:.0f}%", with_commas(s_.step),
                                                      with_commas(steps), std::floor(100 * done))
                                        : fmt::format("step {}", with_commas(s_.step));
    const std::string eta = s_.eta_seconds                    ? "  ETA " + short_duration(*s_.eta_seconds)
                            : is_alive(s_.state) && steps > 0 ? "  ETA --"
                                                              : "";
    Line& out = next();
    out.add(count);
    const std::size_t taken = out.used() + 2 + columns_of(eta);
    if (steps > 0 && taken + 10 <= width_) {
      const std::size_t room = width_ - taken;
      out.add("  ").add(bar(done, room), tone_of(s_.state));
      std::string rest;
      for (std::size_t at = out.used(); at + columns_of(eta) < width_; ++at) rest += "·";
      out.add(rest, Tone::dim);
    }
    out.add(eta);
  }

  // Shows figures of the latest step, as many per line as fit.
  void figures() {
    if (!s_.last) return;
    const StepRecord& r = *s_.last;
    std::vector<std::pair<std::string, std::string>> all{{"loss", fmt::format("{:.4f}", r.loss)}};
    if (s_.evaluation) all.emplace_back("validation", fmt::format("{:.4f}", s_.evaluation->loss));
    all.emplace_back("tokens/s", short_number(r.tokens_per_second));
    if (r.mfu) all.emplace_back("MFU", percent(*r.mfu));
    all.emplace_back("step", seconds_text(s_.step_seconds > 0 ? s_.step_seconds : r.step_seconds));
    all.emplace_back("grad norm", fmt::format("{:.3g}", r.grad_norm));
    all.emplace_back("lr", fmt::format("{:.2e}", r.learning_rate));
    all.emplace_back("tokens", short_number(static_cast<double>(s_.tokens)));
    Line* out = &next();
    for (const auto& [name, value] : all) {
      const std::size_t columns = name.size() + value.size() + 1;
      if (out->used() > 0 && columns + 2 > out->room()) out = &next();
      if (out->used() > 0) out->add("   ");
      out->add(name + " ", Tone::dim).add(value, Tone::strong);
    }
  }

  void loss(std::size_t rows) {
    std::vector<double> values;
    for (const StepBucket& b : s_.series) values.push_back(b.loss.count > 0 ? b.loss.mean() : std::nan(""));
    double low = INFINITY, high = -INFINITY;
    for (const double value : values)
      if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
    if (!(low <= high)) return;
    const std::string steps = fmt::format("steps {} to {}", with_commas(s_.series.front().first_step),
                                          with_commas(s_.series.back().last_step));
    lines_.push_back(title(width_, "loss", steps));
    const std::string top = fmt::format("{:.3f}", high), bottom = fmt::format("{:.3f}", low);
    const std::size_t margin = std::max(top.size(), bottom.size()) + 2;
    if (margin + 4 > width_) return;
    const std::vector<std::string> plot = braille_plot(values, low, high, width_ - margin, rows);
    for (std::size_t row = 0; row < rows; ++row) {
      const std::string label = row == 0 ? top : row + 1 == rows && high > low ? bottom : "";
      next()
          .pad_to(margin - 2 - label.size())
          .add(label, Tone::dim)
          .add(row == 0 || row + 1 == rows ? " ┤" : " │", Tone::dim)
          .add_part(plot[row], 0);
    }
  }

  // Shows the largest parts in the ledger's order; one line sums up the others.
  Lines ledger(std::size_t width, std::size_t rows) const {
    const auto& time = s_.recent_time;
    const double all = std::accumulate(time.begin(), time.end(), 0.0);
    if (all <= 0) return {};
    Lines out{
        title(width, "time of a step", fmt::format("{}, last {} steps", seconds_text(all), s_.recent_steps))};
    std::vector<std::size_t> parts;
    for (std::size_t i = 0; i < time.size(); ++i)
      if (time[i] / all >= 0.0005) parts.push_back(i);
    std::stable_sort(parts.begin(), parts.end(), [&](auto a, auto b) { return time[a] > time[b]; });
    double others = 0;
    const std::size_t kept = parts.size() > rows ? rows - 1 : parts.size();
    for (; parts.size() > kept; parts.pop_back()) others += time[parts.back()];
    std::sort(parts.begin(), parts.end());
    const double most =
        parts.empty() ? all : time[*std::max_element(parts.begin(), parts.end(), [&](auto a, auto b) {
          return time[a] < time[b];
        })];
    // Aligns the bars of all rows.
    std::size_t digits = std::max<std::size_t>(8, seconds_text(others).size());
    for (const std::size_t part : parts) digits = std::max(digits, seconds_text(time[part]).size());
    const auto row = [&](const std::string& name, double seconds, std::size_t color) {
      Line& line = out.emplace_back(this->line(width));
      line.add(fmt::format("{:<14}", name))
          .add(fmt::format("{:>6} {:>{}}  ", percent(seconds / all), seconds_text(seconds), digits));
      if (line.room() > 2) line.add_part(bar(seconds / most, line.room() - 1), color);
    };
    for (const std::size_t part : parts) row(words_of(base::kLedgerParts[part].name), time[part], part);
    if (others / all >= 0.0005) row("other parts", others, time.size() - 1);
    return out;
  }

  Lines ranks(std::size_t width, std::size_t rows) const {
    Lines out{title(width, "ranks and memory")};
    memory(out, width);
    if (s_.ranks.empty()) {
      if (!options_.no_ranks.empty()) out.emplace_back(line(width)).add(options_.no_ranks, Tone::dim);
      return out.size() > 1 ? out : Lines{};
    }
    std::array<std::int64_t, kRankStates> counts{};
    for (const RankStatus& rank : s_.ranks) ++counts.at(static_cast<std::size_t>(rank.state));
    Line& sum = out.emplace_back(line(width));
    for (int i = 0; i < kRankStates; ++i) {
      const auto state = static_cast<RankState>(i);
      if (counts.at(static_cast<std::size_t>(i)) == 0) continue;
      if (sum.used() > 0) sum.add("   ");
      sum.add(cell_of(state), tone_of(state))
          .add(fmt::format(" {} {}", with_commas(counts.at(static_cast<std::size_t>(i))), name_of(state)));
    }
    // The line above already shows the state of a single rank.
    if (s_.ranks.size() > 1) grid(out, width, rows);
    doing(out, width, rows);
    return out;
  }

  // What ranks do: those that have made no progress for longest, in the order of their numbers.
  void doing(Lines& out, std::size_t width, std::size_t rows) const {
    std::vector<std::size_t> shown;
    for (std::size_t rank = 0; rank < s_.ranks.size(); ++rank)
      if (!s_.ranks[rank].doing.empty()) shown.push_back(rank);
    const std::size_t room = std::min(shown.size(), rows);
    // All that have done something lately are alike.
    const auto since = [&](std::size_t rank) {
      const double seconds = s_.now - s_.ranks[rank].doing_at;
      return seconds < kLately ? 0 : seconds;
    };
    std::stable_sort(shown.begin(), shown.end(),
                     [&](std::size_t a, std::size_t b) { return since(a) > since(b); });
    shown.resize(room);
    std::sort(shown.begin(), shown.end());
    for (const std::size_t rank : shown) {
      const RankStatus& r = s_.ranks[rank];
      const bool still = since(rank) > 0;
      Line& row = out.emplace_back(line(width));
      row.add(fmt::format("rank {}  ", rank), Tone::dim);
      if (still) row.add(short_duration(since(rank)) + " in ", Tone::warn);
      row.add(r.doing);
      if (!r.last.empty()) row.add("; last " + r.last, Tone::dim);
    }
  }

  void memory(Lines& out, std::size_t width) const {
    if (s_.memory_planned_bytes <= 0) return;
    Line& row = out.emplace_back(line(width));
    const std::string planned = short_bytes(s_.memory_planned_bytes) + " planned";
    if (!s_.memory_used_bytes) {
      row.add("memory  ").add(planned).add(", not measured yet", Tone::dim);
      return;
    }
    const double share =
        static_cast<double>(*s_.memory_used_bytes) / static_cast<double>(s_.memory_planned_bytes);
    row.add("memory  ")
        .add(fmt::format("{} of {} ({})  ", short_bytes(*s_.memory_used_bytes), planned, percent(share)));
    if (row.room() > 4) row.add(bar(share, row.room() - 1), share > 1 ? Tone::bad : Tone::run);
  }

  // Draws ranks in groups of eight. Each line begins with the number of its first rank.
  void grid(Lines& out, std::size_t width, std::size_t rows) const {
    const std::size_t margin = std::to_string(s_.ranks.size()).size() + 2;
    if (width < margin + 8) return;
    const std::size_t groups = std::max<std::size_t>(1, (width - margin + 1) / 9), each = 8 * groups;
    std::size_t first = 0;
    for (std::size_t row = 0; row < rows && first < s_.ranks.size(); ++row) {
      Line& line = out.emplace_back(this->line(width));
      const std::string number = std::to_string(first);
      line.pad_to(margin - 2 - number.size()).add(number, Tone::dim).add("  ");
      for (std::size_t i = 0; i < each && first < s_.ranks.size(); ++i, ++first) {
        if (i > 0 && i % 8 == 0) line.add(" ");
        const RankState state = s_.ranks[first].state;
        line.add(cell_of(state), tone_of(state));
      }
    }
    if (first < s_.ranks.size())
      out.emplace_back(line(width))
          .add(fmt::format("and {} more", with_commas(static_cast<std::int64_t>(s_.ranks.size() - first))),
               Tone::dim);
  }

  // Shows the latest events, newest first, in the remaining rows.
  void events(std::size_t rows) {
    if (s_.events.empty() || lines_.size() + 2 > rows) return;
    lines_.push_back(title(width_, "events"));
    const std::size_t room = rows - lines_.size();
    for (std::size_t n = 0; n < std::min(room, s_.events.size()); ++n) {
      const RunEvent& event = s_.events[s_.events.size() - 1 - n];
      next()
          .add(time_of_day(event.wall_time) + " ", Tone::dim)
          .add(fmt::format("{:>7} ", event.step))
          .add(fmt::format("{:<10} ", event.kind), tone_of_event(event.kind))
          .add(event.message);
    }
  }

  const RunStatus& s_;
  const FrameOptions& options_;
  std::size_t width_;
  Lines lines_;
};

}  // namespace

std::vector<std::string> top_frame(const RunStatus& status, const FrameOptions& options) {
  return Frame(status, options).draw();
}

}  // namespace trainerd::io
