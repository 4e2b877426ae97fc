#include "io/metrics/report/page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <numeric>

#include "io/metrics/report/chart.h"
#include "io/text.h"
#include "kernels/base/clock.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kLinePoints = 400, kColumns = 180, kTableRows = 12;

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --bg: #f6f7f9; --card: #ffffff; --ink: #1c2330; --dim: #667085; --rule: #e3e7ee; --good: #067647; --bad: #b42318;
  --c0: #2563eb; --c1: #d97706; --c2: #9333ea; --c3: #0d9488; --c4: #db2777;
  --c5: #65a30d; --c6: #0891b2; --c7: #e11d48; --c8: #78716c; --c9: #94a3b8; }
@media (prefers-color-scheme: dark) { :root { --bg: #0e131b; --card: #171e29; --ink: #e6eaf1; --dim: #97a3b6; --rule: #2a3442; --good: #4ade80; --bad: #f97066;
  --c0: #60a5fa; --c1: #fbbf24; --c2: #c084fc; --c3: #2dd4bf; --c4: #f472b6;
  --c5: #a3e635; --c6: #22d3ee; --c7: #fb7185; --c8: #a8a29e; --c9: #64748b; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 28px; background: var(--bg); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; }
h1 { margin: 0; font-size: 26px; } h2 { margin: 32px 0 12px; font-size: 18px; }
.dim { color: var(--dim); } .good { color: var(--good); } .bad { color: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(124px, 1fr)); gap: 12px; margin: 20px 0; }
.card, figure, .box { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; margin: 0; }
.card b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; } .card span { color: var(--dim); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(460px, 100%), 1fr)); gap: 14px; }
figcaption { font-weight: 600; display: inline-block; margin-right: 16px; }
.legend { display: inline-block; color: var(--dim); font-size: 13px; } .legend span { margin-right: 12px; white-space: nowrap; }
i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 5px; }
svg { display: block; width: 100%; height: auto; margin-top: 8px; } svg text { fill: var(--dim); font: 12px system-ui, sans-serif; }
text.y { text-anchor: end; } text.x { text-anchor: middle; } .grid { stroke: var(--rule); } .axis, .tick { stroke: var(--dim); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .band { opacity: .2; } .hover { fill: transparent; } rect.hover:hover { fill: var(--dim); opacity: .18; }
.bar { display: flex; height: 22px; border-radius: 6px; overflow: hidden; margin-bottom: 12px; }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(360px, 100%), 1fr)); gap: 14px; align-items: start; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; } td, th { padding: 4px 10px 4px 0; text-align: left; border-bottom: 1px solid var(--rule); }
th { color: var(--dim); font-weight: 500; font-size: 13px; } tr:last-child td { border-bottom: 0; } .n { text-align: right; padding-right: 0; }
pre { margin: 0; overflow-x: auto; font: 13px/1.5 ui-monospace, monospace; }
)";

std::string color_rules() {
  std::string out;
  for (std::size_t i = 0; i < kLedgerParts; ++i)
    out += fmt::format(
        ".s{0} {{ stroke: var(--c{0}); }} .f{0} {{ fill: var(--c{0}); }} .b{0} {{ background: var(--c{0}); "
        "}}\n",
        i);
  return out;
}

std::string card(const std::string& value, const std::string& name) {
  return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>\n", escape_html(value),
                     escape_html(name));
}

std::string head(const Report& r) {
  const bool done = r.summary.outcome == "done";
  std::string out = fmt::format(
      "<h1>{}</h1>\n<div class=\"dim\">{} &middot; {} &middot; {} thread{} &middot; trainerd {} &middot; "
      "{:%Y-%m-%d %H:%M} UTC &middot; <b class=\"{}\">{}</b></div>\n",
      escape_html(r.info.name), escape_html(r.info.device), escape_html(r.info.precision), r.info.threads,
      r.info.threads == 1 ? "" : "s", escape_html(r.info.version),
      fmt::gmtime(static_cast<std::time_t>(base::wall_seconds())), done ? "good" : "bad",
      escape_html(r.summary.outcome));
  out += "<div class=\"cards\">\n" + card(fmt::format("{} / {}", r.summary.step, r.info.steps), "steps");
  if (!r.series.buckets().empty()) out += card(fmt::format("{:.4f}", r.final_loss), "final loss");
  if (!r.evaluations.empty())
    out += card(fmt::format("{:.4f}", r.evaluations.back().loss), "validation loss");
  if (r.median_tokens_per_second > 0)
    out += card(short_number(r.median_tokens_per_second), "tokens/s, median");
  if (r.median_mfu > 0) out += card(fmt::format("{:.1f}%", 100 * r.median_mfu), "MFU, median");
  out += card(short_duration(r.summary.wall_seconds), "wall time");
  out += card(short_number(static_cast<double>(r.info.parameters)), "parameters");
  return out + card(short_bytes(r.info.memory_planned_bytes), "memory planned") + "</div>\n";
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
std::string percent(double ratio) { return fmt::format("{:.3g}%", 100 * ratio); }

std::string charts(const Report& r) {
  ChartLine validation{.label = "validation", .color = 1, .dots = true, .points = {}};
  for (const EvaluationRecord& e : r.evaluations)
    if (std::isfinite(e.loss))
      validation.points.push_back({static_cast<double>(e.step), e.loss, e.loss, e.loss});
  std::string out = "<h2>Training</h2>\n<div class=\"charts\">\n";
  out += draw(LineChart{
      "Loss", ChartScale::fitted, short_real, {line_of(r, "training", 0, &StepBucket::loss), validation}});
  out += draw(LineChart{"Learning rate",
                        ChartScale::from_zero,
                        short_real,
                        {line_of(r, "learning rate", 3, &StepBucket::learning_rate)}});
  out += draw(LineChart{"Gradient norm, before clipping",
                        ChartScale::logarithmic,
                        short_real,
                        {line_of(r, "gradient norm", 2, &StepBucket::grad_norm)}});
  out += draw(LineChart{"Tokens per second",
                        ChartScale::from_zero,
                        short_number,
                        {line_of(r, "tokens/s", 0, &StepBucket::tokens_per_second)}});
  out += draw(LineChart{
      "Model FLOPs utilisation", ChartScale::from_zero, percent, {line_of(r, "MFU", 3, &StepBucket::mfu)}});
  StackedChart ledger{
      .title = "Where a step's time goes", .format = short_duration, .columns = {}, .labels = {}};
  for (const LedgerPart& part : parts(TimeLedger{})) ledger.labels.emplace_back(part.name);
  for (const StepBucket& bucket : r.series.coarse(kColumns)) {
    StackedColumn column{static_cast<double>(bucket.first_step) - 0.5,
                         static_cast<double>(bucket.last_step) + 0.5,
                         {},
                         fmt::format("step {}", bucket.first_step)};
    for (std::size_t i = 0; i < bucket.time.size(); ++i) {
      column.values.push_back(bucket.time[i] / static_cast<double>(bucket.steps));
      if (column.values[i] > 0)
        column.hover += fmt::format("\n{} {}", ledger.labels[i], short_duration(column.values[i]));
    }
    ledger.columns.push_back(std::move(column));
  }
  return out + draw(ledger) + "</div>\n";
}

std::string ledger_table(const Report& r) {
  std::array<double, kLedgerParts> total{};
  for (const StepBucket& bucket : r.series.buckets())
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += bucket.time[i];
  const double all = std::accumulate(total.begin(), total.end(), 0.0);
  if (all <= 0) return "";
  std::string bar, rows;
  const auto names = parts(TimeLedger{});
  for (std::size_t i = 0; i < total.size(); ++i) {
    if (total[i] <= 0) continue;
    bar += fmt::format("<div class=\"b{}\" style=\"width:{:.3f}%\" title=\"{}\"></div>", i,
                       100 * total[i] / all, names[i].name);
    rows += fmt::format(
        "<tr><td><i class=\"b{}\"></i>{}</td><td class=\"n\">{}</td><td class=\"n\">{:.1f}%</td></tr>\n", i,
        names[i].name, short_duration(total[i]), 100 * total[i] / all);
  }
  return fmt::format(
      "<div class=\"box\"><div class=\"bar\">{}</div><table><tr><th>time ledger, all steps</th><th "
      "class=\"n\">total</th><th class=\"n\">share</th></tr>\n{}</table></div>\n",
      bar, rows);
}

// The latest records, newest first.
template <class Record, class Row>
std::string latest(const std::vector<Record>& records, const std::string& header, Row row) {
  if (records.empty()) return "";
  std::string out = "<div class=\"box\"><table>" + header + "\n";
  const std::size_t first = records.size() - std::min(records.size(), kTableRows);
  for (std::size_t i = records.size(); i-- > first;) out += "<tr>" + row(records[i]) + "</tr>\n";
  if (first > 0) out += fmt::format("<tr><td class=\"dim\" colspan=\"4\">and {} before</td></tr>\n", first);
  return out + "</table></div>\n";
}

/// Seconds, or bytes where the name says so.
std::string prediction_value(const PredictionTerm& term, double value) {
  return term.name.ends_with("_bytes") ? short_bytes(static_cast<std::int64_t>(value)) : short_duration(value);
}

std::string prediction_table(const PredictionRecord& p) {
  if (p.terms.empty()) return "";
  std::string rows;
  for (const PredictionTerm& term : p.terms)
    rows += fmt::format("<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{:+.1f}%</td></tr>\n", escape_html(term.name),
                        prediction_value(term, term.predicted), prediction_value(term, term.measured), 100 * term.error);
  return fmt::format("<div class=\"box\"><table><tr><th>steps {} to {}</th><th class=\"n\">planned</th><th class=\"n\">measured</th>"
                     "<th class=\"n\">off by</th></tr>\n{}</table></div>\n", p.first_step, p.last_step, rows);
}

std::string tables(const Report& r) {
  std::string out = "<h2>Time, memory, checkpoints</h2>\n<div class=\"tables\">\n" + ledger_table(r);
  std::string regions;
  for (const auto& [region, bytes] : r.info.memory_regions)
    regions +=
        fmt::format("<tr><td>{}</td><td class=\"n\">{}</td></tr>\n", escape_html(region), short_bytes(bytes));
  if (!regions.empty())
    out += "<div class=\"box\"><table><tr><th>memory region</th><th class=\"n\">planned</th></tr>\n" +
           regions + "</table></div>\n";
  out += prediction_table(r.prediction);
  out += latest(
      r.evaluations,
      "<tr><th>evaluation at step</th><th class=\"n\">validation loss</th><th class=\"n\">took</th></tr>",
      [](const EvaluationRecord& e) {
        return fmt::format("<td>{}</td><td class=\"n\">{:.4f}</td><td class=\"n\">{}</td>", e.step, e.loss,
                           short_duration(e.seconds));
      });
  out +=
      latest(r.checkpoints,
             "<tr><th>checkpoint at step</th><th class=\"n\">size</th><th class=\"n\">stall</th><th "
             "class=\"n\">write</th></tr>",
             [](const CheckpointRecord& c) {
               return fmt::format(
                   "<td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>", c.step,
                   short_bytes(c.bytes), short_duration(c.snapshot_seconds), short_duration(c.write_seconds));
             });
  return out + "</div>\n";
}

}  // namespace

std::string render(const Report& r) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n";
  out += fmt::format("<title>{} &middot; trainerd</title>\n<style>{}{}</style></head>\n<body><main>\n",
                     escape_html(r.info.name), kStyle, color_rules());
  out += head(r) + charts(r) + tables(r);
  if (!r.job_yaml.empty())
    out += "<h2>Job</h2>\n<div class=\"box\"><pre>" + escape_html(r.job_yaml) + "</pre></div>\n";
  return out + "</main></body></html>\n";
}

}  // namespace trainerd::io
