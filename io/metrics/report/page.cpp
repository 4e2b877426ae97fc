#include "io/metrics/report/page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "io/metrics/report/chart.h"
#include "io/metrics/report/document.h"
#include "io/metrics/report/tables.h"
#include "io/text/text.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kLinePoints = 400, kColumns = 180;
constexpr int kChartColors = 10;  // in the style sheet

// Returns the notice of a failed run; null if it did not fail.
const NoticeRecord* failure_of(const Report& r) {
  const auto last = std::find_if(r.notices.rbegin(), r.notices.rend(),
                                 [](const NoticeRecord& n) { return n.kind != NoticeKind::warning; });
  return last == r.notices.rend() || last->kind != NoticeKind::failure ? nullptr : &*last;
}

// Shows the whole message.
std::string failure_box(const NoticeRecord* last) {
  if (last == nullptr) return "";
  std::string text = last->message;
  for (const std::string& detail : last->details) text += "\n" + detail;
  return fmt::format(
      "<div class=\"box failed\"><b class=\"bad\">Failed after step {}</b><pre>{}</pre></div>\n", last->step,
      escape_html(text));
}

std::string head(const Report& r) {
  const NoticeRecord* failure = failure_of(r);
  std::string out = fmt::format(
      "<h1>{}</h1>\n<p class=\"dim sub\"><b class=\"{}\">{}</b> &middot; as of {:%Y-%m-%d %H:%M:%S} "
      "UTC</p>\n",
      escape_html(r.info.name), class_of_outcome(r.summary.outcome),
      failure != nullptr ? "failed" : escape_html(r.summary.outcome),
      fmt::gmtime(static_cast<std::time_t>(r.now)));
  out += failure_box(failure);
  out += "<div class=\"cards\">\n" + card_html(fmt::format("{} / {}", r.summary.step, r.info.steps), "steps");
  if (!r.series.buckets().empty())
    out +=
        card_html(fmt::format("{:.4f}", r.final_loss), r.summary.outcome == kRunning ? "loss" : "final loss");
  if (!r.evaluations.empty())
    out += card_html(fmt::format("{:.4f}", r.evaluations.back().loss), "validation loss");
  if (r.median_tokens_per_second > 0)
    out += card_html(short_number(r.median_tokens_per_second), "tokens/s, median");
  if (r.median_mfu > 0) out += card_html(fmt::format("{:.1f}%", 100 * r.median_mfu), "MFU, median");
  const std::size_t attempts = r.attempts.size();
  out += card_html(short_duration(r.total_seconds),
                   attempts < 2 ? "total time" : fmt::format("total time, {} attempts", attempts));
  std::int64_t lost = 0;
  for (const Attempt& attempt : r.attempts) lost += attempt.lost_steps;
  if (lost > 0) out += card_html(with_commas(lost), "steps done again");
  out += card_html(short_number(static_cast<double>(r.info.parameters)), "parameters");
  return out + card_html(short_bytes(r.info.memory_planned_bytes), "memory planned") + "</div>\n";
}

// Marks where each later attempt continued.
std::vector<ChartMark> marks_of(const Report& r) {
  std::vector<ChartMark> marks;
  for (std::size_t n = 1; n < r.attempts.size(); ++n)
    marks.push_back({static_cast<double>(r.attempts[n].start_step) + 0.5, fmt::format("attempt {}", n + 1)});
  return marks;
}

ChartLine line_of(const Report& r, const char* label, int color, Spread StepBucket::*quantity) {
  ChartLine line{.label = label, .color = color, .dots = false, .points = {}};
  for (const StepBucket& bucket : r.series.coarse(kLinePoints)) {
    const Spread& s = bucket.*quantity;
    const double middle =
        (static_cast<double>(bucket.first_step) + static_cast<double>(bucket.last_step)) / 2;
    if (s.count > 0) line.points.push_back({std::floor(middle), s.low, s.mean(), s.high});
  }
  return line;
}

std::string short_real(double value) { return fmt::format("{:.4g}", value); }
// Also handles less than a millisecond.
std::string precise_duration(double seconds) {
  if (seconds == 0) return "0";
  return seconds < 0.0995 ? fmt::format("{:.3g} ms", 1e3 * seconds) : short_duration(seconds);
}
std::string percent(double ratio) { return fmt::format("{:.3g}%", 100 * ratio); }

// One line, or one per named set.
std::vector<ChartLine> validation_lines(const Report& r) {
  std::vector<ChartLine> lines;
  const auto add = [&lines](const std::string& label, std::int64_t step, double loss) {
    if (!std::isfinite(loss)) return;
    auto line =
        std::find_if(lines.begin(), lines.end(), [&](const ChartLine& l) { return l.label == label; });
    if (line == lines.end())
      line = lines.insert(lines.end(), {.label = label,
                                        .color = 1 + static_cast<int>(lines.size() % (kChartColors - 1)),
                                        .dots = true,
                                        .points = {}});
    line->points.push_back({static_cast<double>(step), loss, loss, loss});
  };
  for (const EvaluationRecord& e : r.evaluations) {
    if (e.sets.empty()) add("validation", e.step, e.loss);
    for (const ValidationRecord& set : e.sets) add("validation, " + set.set, e.step, set.loss);
  }
  return lines;
}

std::string charts(const Report& r) {
  std::vector<ChartLine> losses{line_of(r, "training", 0, &StepBucket::loss)};
  for (ChartLine& line : validation_lines(r)) losses.push_back(std::move(line));
  const std::vector<ChartMark> marks = marks_of(r);
  std::string out = "<h2>Training</h2>\n<div class=\"charts\">\n";
  out += draw(LineChart{"Loss", ChartScale::fitted, short_real, losses, marks});
  out += draw(LineChart{"Learning rate",
                        ChartScale::from_zero,
                        short_real,
                        {line_of(r, "learning rate", 3, &StepBucket::learning_rate)},
                        marks});
  out += draw(LineChart{"Gradient norm, before clipping",
                        ChartScale::logarithmic,
                        short_real,
                        {line_of(r, "gradient norm", 2, &StepBucket::grad_norm)},
                        marks});
  out += draw(LineChart{"Tokens per second",
                        ChartScale::from_zero,
                        short_number,
                        {line_of(r, "tokens/s", 0, &StepBucket::tokens_per_second)},
                        marks});
  out += draw(LineChart{"Model FLOPs utilisation",
                        ChartScale::from_zero,
                        percent,
                        {line_of(r, "MFU", 3, &StepBucket::mfu)},
                        marks});
  StackedChart ledger{.title = "Where a step's time goes",
                      .format = precise_duration,
                      .columns = {},
                      .labels = {},
                      .scale = StackedScale::without_outliers};
  for (const base::LedgerPartInfo& part : base::kLedgerParts) ledger.labels.emplace_back(part.name);
  for (const StepBucket& bucket : r.series.coarse(kColumns)) {
    StackedColumn column{static_cast<double>(bucket.first_step) - 0.5,
                         static_cast<double>(bucket.last_step) + 0.5,
                         {},
                         fmt::format("step {}", bucket.first_step)};
    for (std::size_t i = 0; i < bucket.time.size(); ++i) {
      column.values.push_back(bucket.time[i] / static_cast<double>(bucket.steps));
      if (column.values[i] > 0)
        column.hover += fmt::format("\n{} {}", ledger.labels[i], precise_duration(column.values[i]));
    }
    ledger.columns.push_back(std::move(column));
  }
  out += draw(ledger);
  // Drawn at its own scale, since compute would flatten it.
  ledger.title = "What of it is not compute";
  for (StackedColumn& column : ledger.columns) column.values.front() = 0;
  return out + draw(ledger) + ledger_table(r) + "</div>\n";
}

}  // namespace

std::string render(const Report& r) {
  const bool running = r.summary.outcome == kRunning;
  HtmlDocument page{.title = r.info.name};
  // The tag in the first kilobyte tells other programs that the run is still running. An open page reloads
  // itself.
  if (running) page.head = fmt::format("{}<meta http-equiv=\"refresh\" content=\"60\">\n", kRunningTag);
  page.body = head(r) + charts(r) + facts_table(r) + attempts_table(r) + wall_table(r) + figures_tables(r) +
              history_table(r);
  if (!r.job_yaml.empty())
    page.body += "<h2>Job</h2>\n<div class=\"box\"><pre>" + escape_html(r.job_yaml) + "</pre></div>\n";
  return to_html(page);
}

}  // namespace trainerd::io
