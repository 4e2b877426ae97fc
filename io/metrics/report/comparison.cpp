#include "io/metrics/report/comparison.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "io/metrics/report/chart.h"
#include "io/metrics/report/comparison_script.h"
#include "io/metrics/report/document.h"
#include "io/metrics/report/tables.h"
#include "io/text/json.h"
#include "io/text/text.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kCurvePoints = 600;
constexpr int kColors = 10;

using Object = nlohmann::ordered_json;
using Runs = std::vector<ComparedRun>;

std::string chip(std::size_t run) { return fmt::format("<i class=\"b{}\"></i>", run % kColors); }

// Returns low, mean and high of each bucket; null without values.
Object column(const std::vector<StepBucket>& buckets, Spread StepBucket::*quantity) {
  Object list = Object::array();
  for (const StepBucket& b : buckets) {
    const Spread& s = b.*quantity;
    if (s.count == 0) list.push_back(nullptr);
    else list.push_back(Object::array({s.low, s.mean(), s.high}));
  }
  return list;
}

double seconds_of(const StepBucket& b) { return std::accumulate(b.time.begin(), b.time.end(), 0.0); }

Object data_of(const ComparedRun& run) {
  const std::vector<StepBucket> buckets = run.report.series.coarse(kCurvePoints);
  Object steps = Object::array(), seconds = Object::array(), step_seconds = Object::array();
  double total = 0;
  for (const StepBucket& b : buckets) {
    const double all = seconds_of(b), each = all / static_cast<double>(b.steps);
    steps.push_back((b.first_step + b.last_step) / 2);
    seconds.push_back(total + all / 2);
    total += all;
    step_seconds.push_back(Object::array({each, each, each}));
  }
  Object ramp = Object::array();
  for (const auto& [count, tokens] : run.report.info.ramp) ramp.push_back(Object::array({count, tokens}));
  Object evaluations = Object::array();
  for (const EvaluationRecord& e : run.report.evaluations)
    if (std::isfinite(e.loss)) evaluations.push_back(Object::array({e.step, e.loss}));
  return {{"label", run.label},
          {"tokens_per_step", run.report.info.tokens_per_step},
          {"ramp", ramp},
          {"step", steps},
          {"seconds", seconds},
          {"loss", column(buckets, &StepBucket::loss)},
          {"grad_norm", column(buckets, &StepBucket::grad_norm)},
          {"learning_rate", column(buckets, &StepBucket::learning_rate)},
          {"tokens_per_second", column(buckets, &StepBucket::tokens_per_second)},
          {"mfu", column(buckets, &StepBucket::mfu)},
          {"step_seconds", step_seconds},
          {"evaluations", evaluations}};
}

// For browsers without scripts.
std::string loss_picture(const Runs& runs) {
  LineChart chart{.title = "Training loss",
                  .scale = ChartScale::fitted,
                  .format = [](double value) { return fmt::format("{:.4g}", value); },
                  .lines = {}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ChartLine line{
        .label = runs[i].label, .color = static_cast<int>(i % kColors), .dots = false, .points = {}};
    for (const StepBucket& b : runs[i].report.series.coarse(kCurvePoints))
      if (b.loss.count > 0)
        line.points.push_back({static_cast<double>(b.first_step + b.last_step) / 2, b.loss.mean(),
                               b.loss.mean(), b.loss.mean()});
    chart.lines.push_back(std::move(line));
  }
  return draw(chart);
}

/// A table with one row of figures per run. Columns without figures are left out, and so are columns of facts
/// that are equal for all runs.
class Figures {
 public:
  using Value = std::function<std::string(const Report&)>;
  explicit Figures(const Runs& runs) : runs_(runs) {}

  void text(const std::string& name, const Value& value) { add(name, "", cells_of(value)); }
  void number(const std::string& name, const Value& value) { add(name, "n", cells_of(value)); }
  void fact(const std::string& name, const std::string& style, const Value& value) {
    const std::vector<std::string> cells = cells_of(value);
    if (std::adjacent_find(cells.begin(), cells.end(), std::not_equal_to<>()) != cells.end())
      add(name, style, cells);
  }
  std::string html() const {
    std::string out = "<div class=\"box scroll\"><table id=\"figures\"><tr><th>run</th>" + head_ + "</tr>\n";
    for (std::size_t i = 0; i < runs_.size(); ++i)
      out += fmt::format("<tr><td class=\"nowrap lead\" title=\"{}\">{}{}</td>{}</tr>\n",
                         escape_html(runs_[i].path), chip(i), escape_html(runs_[i].label), rows_.at(i));
    return out + "</table></div>\n";
  }

 private:
  std::vector<std::string> cells_of(const Value& value) const {
    std::vector<std::string> cells;
    for (const ComparedRun& run : runs_) cells.push_back(value(run.report));
    return cells;
  }
  void add(const std::string& name, const std::string& style, const std::vector<std::string>& cells) {
    if (std::all_of(cells.begin(), cells.end(), [](const std::string& c) { return c.empty(); })) return;
    head_ += fmt::format("<th class=\"{}\">{}</th>", style, name);
    rows_.resize(runs_.size());
    for (std::size_t i = 0; i < cells.size(); ++i)
      rows_[i] += fmt::format("<td class=\"nowrap {}\">{}</td>", style, cells[i]);
  }

  const Runs& runs_;
  std::string head_;
  std::vector<std::string> rows_;
};

double lowest_validation(const Report& r) {
  double lowest = std::numeric_limits<double>::infinity();
  for (const EvaluationRecord& e : r.evaluations)
    if (std::isfinite(e.loss)) lowest = std::min(lowest, e.loss);
  return lowest;
}

double mean_step_seconds(const Report& r) {
  double seconds = 0;
  std::int64_t steps = 0;
  for (const StepBucket& b : r.series.buckets()) seconds += seconds_of(b), steps += b.steps;
  return steps > 0 ? seconds / static_cast<double>(steps) : 0;
}

std::string precise(double seconds) {
  if (seconds == 0) return "0";
  return seconds < 0.0995 ? fmt::format("{:.3g} ms", 1e3 * seconds) : short_duration(seconds);
}

std::string figures_table(const Runs& runs) {
  Figures table(runs);
  table.text("state", [](const Report& r) {
    return fmt::format("<b class=\"{}\">{}</b>", class_of_outcome(r.summary.outcome),
                       escape_html(short_outcome(r.summary.outcome)));
  });
  table.number("steps", [](const Report& r) {
    return with_commas(r.summary.step) + (r.info.steps > 0 ? " / " + with_commas(r.info.steps) : "");
  });
  table.number("tokens", [](const Report& r) {
    return r.tokens > 0 ? short_number(static_cast<double>(r.tokens)) : "";
  });
  table.number("loss", [](const Report& r) {
    return r.series.buckets().empty() ? "" : fmt::format("{:.4f}", r.final_loss);
  });
  table.number("validation loss", [](const Report& r) {
    return r.evaluations.empty() ? "" : fmt::format("{:.4f}", r.evaluations.back().loss);
  });
  table.number("lowest", [](const Report& r) {
    const double lowest = lowest_validation(r);
    return std::isfinite(lowest) ? fmt::format("{:.4f}", lowest) : "";
  });
  table.number("tokens/s", [](const Report& r) {
    return r.median_tokens_per_second > 0 ? short_number(r.median_tokens_per_second) : "";
  });
  table.number("MFU", [](const Report& r) {
    return r.median_mfu > 0 ? fmt::format("{:.1f}%", 100 * r.median_mfu) : "";
  });
  table.number("time per step", [](const Report& r) {
    return r.series.buckets().empty() ? "" : precise(mean_step_seconds(r));
  });
  table.number("total time",
               [](const Report& r) { return r.total_seconds > 0 ? short_duration(r.total_seconds) : ""; });
  table.fact("attempts", "n",
             [](const Report& r) { return r.attempts.empty() ? "" : std::to_string(r.attempts.size()); });
  table.fact("parameters", "n", [](const Report& r) {
    return r.info.parameters > 0 ? short_number(static_cast<double>(r.info.parameters)) : "";
  });
  table.fact("memory planned", "n", [](const Report& r) {
    return r.info.memory_planned_bytes > 0 ? short_bytes(r.info.memory_planned_bytes) : "";
  });
  table.fact("layout", "", [](const Report& r) { return escape_html(r.info.layout); });
  table.fact("program", "", [](const Report& r) {
    return escape_html(r.info.version + (r.info.commit.empty() ? "" : " (" + r.info.commit + ")"));
  });
  return table.html();
}

using Shares = std::array<double, base::kLedgerParts.size()>;

// Returns the seconds per step of each part.
Shares ledger_of(const Report& r) {
  Shares time{};
  std::int64_t steps = 0;
  for (const StepBucket& b : r.series.buckets()) {
    for (std::size_t i = 0; i < time.size(); ++i) time[i] += b.time[i];
    steps += b.steps;
  }
  for (double& seconds : time) seconds /= static_cast<double>(std::max<std::int64_t>(1, steps));
  return time;
}

std::string ledgers(const Runs& runs) {
  std::vector<Shares> all;
  double longest = 0;
  for (const ComparedRun& run : runs) {
    all.push_back(ledger_of(run.report));
    longest = std::max(longest, std::accumulate(all.back().begin(), all.back().end(), 0.0));
  }
  if (longest <= 0) return "";
  std::string bars, head = "<tr><th>mean per step</th>", rows;
  for (std::size_t n = 0; n < runs.size(); ++n) {
    std::string bar;
    for (std::size_t i = 0; i < all[n].size(); ++i)
      if (all[n][i] > 0)
        bar += fmt::format("<div class=\"b{}\" style=\"width:{:.3f}%\" title=\"{} {}\"></div>", i,
                           100 * all[n][i] / longest, part_words(base::kLedgerParts[i]), precise(all[n][i]));
    bars +=
        fmt::format("<div>{}{}</div><div class=\"bar\">{}</div>\n", chip(n), escape_html(runs[n].label), bar);
    head += fmt::format("<th class=\"n\">{}</th><th class=\"n\"></th>", escape_html(runs[n].label));
  }
  for (std::size_t i = 0; i < base::kLedgerParts.size(); ++i) {
    if (std::all_of(all.begin(), all.end(), [i](const Shares& s) { return s[i] <= 0; })) continue;
    rows += fmt::format("<tr><td class=\"nowrap\"><i class=\"b{}\"></i>{}</td>", i,
                        part_words(base::kLedgerParts[i]));
    for (const Shares& s : all) {
      const double step = std::accumulate(s.begin(), s.end(), 0.0);
      rows += fmt::format("<td class=\"n nowrap\">{}</td><td class=\"n dim\">{:.1f}%</td>", precise(s[i]),
                          step > 0 ? 100 * s[i] / step : 0);
    }
    rows += "</tr>\n";
  }
  return "<h2>Time ledgers</h2>\n<div class=\"box ledgers\">" + bars + "<div class=\"scroll\"><table>" +
         head + "</tr>\n" + rows + "</table></div></div>\n";
}

std::string keys_table(const Runs& runs, const std::vector<DifferingKey>& keys) {
  std::string out = "<h2>Differing keys</h2>\n";
  if (keys.empty()) return out + "<div class=\"box dim\">The jobs are the same in every key.</div>\n";
  out += "<div class=\"box scroll\"><table id=\"keys\"><tr><th>key</th>";
  for (std::size_t i = 0; i < runs.size(); ++i)
    out += fmt::format("<th>{}{}</th>", chip(i), escape_html(runs[i].label));
  out += "</tr>\n";
  for (const DifferingKey& key : keys) {
    out += "<tr><td><code>" + escape_html(key.key) + "</code></td>";
    for (const std::string& value : key.values)
      out += fmt::format("<td class=\"{}\">{}</td>", value == key.values.front() ? "" : "differs",
                         value.empty() ? "<span class=\"dim\">none</span>" : escape_html(value));
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

// Lists the runs that ended with a failure.
std::string failures(const Runs& runs) {
  std::string out;
  for (const ComparedRun& run : runs)
    if (!run.report.attempts.empty() && run.report.attempts.back().how == NoticeKind::failure)
      out += fmt::format("<div class=\"box failed\"><b class=\"bad\">{}</b> {}</div>\n",
                         escape_html(run.label), escape_html(run.report.attempts.back().outcome));
  return out;
}

}  // namespace

std::vector<std::string> run_labels(const std::vector<std::string>& paths) {
  std::vector<std::string> labels;
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    const std::filesystem::path clean = std::filesystem::path(path).lexically_normal();
    labels.push_back(clean.has_filename() ? clean.filename().string()
                                          : clean.parent_path().filename().string());
    seen.insert(labels.back());
  }
  return seen.size() == paths.size() ? labels : paths;
}

std::string render_comparison(const Runs& runs, const std::vector<DifferingKey>& keys) {
  HtmlDocument page{.title = fmt::format("{} runs", runs.size())};
  Object data = Object::array();
  for (const ComparedRun& run : runs) data.push_back(data_of(run));
  page.data = to_text(data);
  page.script = kComparisonScript;
  const double now = runs.empty() ? 0 : runs.front().report.now;
  page.body = fmt::format("<h1>{} runs</h1>\n<p class=\"dim sub\">as of {:%Y-%m-%d %H:%M:%S} UTC</p>\n",
                          runs.size(), fmt::gmtime(static_cast<std::time_t>(now)));
  page.body += "<h2>Figures</h2>\n" + figures_table(runs) + failures(runs);
  page.body +=
      "<h2>Curves</h2>\n<div class=\"controls\" id=\"controls\" hidden></div>\n<div class=\"charts wide\" "
      "id=\"charts\">\n" +
      loss_picture(runs) + "</div>\n";
  page.body += ledgers(runs) + keys_table(runs, keys);
  return to_html(page);
}

}  // namespace trainerd::io
