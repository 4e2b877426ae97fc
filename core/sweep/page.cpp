#include "core/sweep/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/sweep/table.h"
#include "io/metrics/report/chart.h"
#include "io/metrics/report/parallel_chart.h"
#include "io/metrics/report/style.h"
#include "io/text/json.h"
#include "io/text/text.h"

namespace trainerd::core::sweep {
namespace {

using io::escape_html;
using Json = nlohmann::ordered_json;

// Ratio from which a key's numbers get a logarithmic axis.
constexpr double kLogRatio = 8;
// Up to this many distinct values the axis has a tick at each, beyond that round numbers.
constexpr std::size_t kMaxValueTicks = 8;

constexpr const char* kTableStyle =
    "a { color: inherit; } .jobs td, .jobs th { padding-right: 20px; white-space: nowrap; }\n"
    ".jobs td:last-child, .jobs th:last-child { padding-right: 0; }\n"
    ".jobs tr.explained td { border-bottom: 0; } .jobs tr.reason td { padding-top: 0; white-space: normal; "
    "}\n";

/// The values of a key in all jobs: numbers or words.
struct KeyValues {
  io::ParallelAxis axis;
  std::vector<std::optional<double>> of_job;
};

KeyValues values_of(const Sweep& sweep, const std::string& key) {
  KeyValues values{.axis = {.name = key}, .of_job = {}};
  std::vector<Json> json;
  for (const SweepJob& job : sweep.jobs) json.push_back(json_of(job, key));
  const auto is_number = [](const Json& value) { return value.is_number() || value.is_null(); };
  if (std::all_of(json.begin(), json.end(), is_number)) {
    std::set<double> distinct;
    for (const Json& value : json) {
      values.of_job.push_back(value.is_null() ? std::nullopt : std::optional(value.get<double>()));
      if (!value.is_null()) distinct.insert(value.get<double>());
    }
    values.axis.log =
        !distinct.empty() && *distinct.begin() > 0 && *distinct.rbegin() >= kLogRatio * *distinct.begin();
    if (distinct.size() <= kMaxValueTicks) values.axis.ticks.assign(distinct.begin(), distinct.end());
    return values;
  }
  std::vector<std::string>& words = values.axis.words;
  for (const Json& value : json) {
    const std::string word = value.is_null()     ? "-"
                             : value.is_string() ? value.get<std::string>()
                                                 : io::to_text(value);
    const auto known = std::find(words.begin(), words.end(), word);
    values.of_job.push_back(static_cast<double>(known - words.begin()));
    if (known == words.end()) words.push_back(word);
  }
  return values;
}

/// True if jobs are compared by validation loss, because one was evaluated.
bool compares_validation(const std::vector<JobResult>& results) {
  return std::any_of(results.begin(), results.end(),
                     [](const JobResult& r) { return r.record.validation_loss.has_value(); });
}

std::optional<double> metric_of(const JobResult& result, bool validation) {
  const std::optional<double>& value = validation ? result.record.validation_loss : result.record.loss;
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::string chart(const Sweep& sweep, const std::vector<JobResult>& results) {
  const bool validation = compares_validation(results);
  io::ParallelChart chart{.title = "Jobs by their keys; dashed: not done", .axes = {}, .lines = {}};
  std::vector<KeyValues> keys;
  for (const std::string& key : keys_of(sweep)) keys.push_back(values_of(sweep, key));
  for (const KeyValues& key : keys) chart.axes.push_back(key.axis);
  chart.axes.push_back({.name = validation ? "validation loss" : "loss"});
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const JobResult& result : results)
    if (const auto metric = metric_of(result, validation))
      low = std::min(low, *metric), high = std::max(high, *metric);
  chart.axes.back().log = low > 0 && high >= kLogRatio * low;
  const auto best = best_job(results);
  for (std::size_t i = 0; i < results.size(); ++i) {
    io::ParallelLine line{.values = {}, .hover = sweep.jobs[i].name + ", " + name_of(results[i].status)};
    for (const KeyValues& key : keys) line.values.push_back(key.of_job[i]);
    for (const SetKey& set : sweep.jobs[i].set)
      line.hover += "\n" + set.path + ": " + value_of(sweep.jobs[i], set.path);
    const auto metric = metric_of(results[i], validation);
    line.values.push_back(metric);
    if (metric)
      line.hover +=
          fmt::format("\n{}: {:.4f} at step {}", chart.axes.back().name, *metric, results[i].record.step);
    if (metric && results[i].status == JobStatus::done)
      line.shade = high > low ? (*metric - low) / (high - low) : 0;
    line.best = best == i;
    chart.lines.push_back(std::move(line));
  }
  return io::draw(chart);
}

const char* class_of(JobStatus status) {
  switch (status) {
    case JobStatus::done: return "good";
    case JobStatus::failed: return "bad";
    case JobStatus::refused:
    case JobStatus::stopped_early: return "warn";
    case JobStatus::open: return "run";
  }
  return "";
}

/// True if the sweep sets the key, not the base.
bool gives(const SweepJob& job, const std::string& key) {
  return std::any_of(job.set.begin(), job.set.end(), [&](const SetKey& set) { return set.path == key; });
}

std::string table(const Sweep& sweep, const std::vector<JobResult>& results) {
  const std::vector<std::string> keys = keys_of(sweep);
  std::string out = "<h2>Jobs</h2>\n<div class=\"box wide\"><table class=\"jobs\">\n<tr><th>job</th>";
  for (const std::string& key : keys) out += "<th>" + escape_html(key) + "</th>";
  const bool validation = compares_validation(results);
  out += "<th>status</th><th class=\"n\">step</th><th class=\"n\">loss</th>";
  if (validation) out += "<th class=\"n\">validation loss</th>";
  out += "<th class=\"n\">tokens/s</th></tr>\n";
  for (std::size_t i = 0; i < results.size(); ++i) {
    const SweepJob& job = sweep.jobs[i];
    const JobResult& result = results[i];
    const std::string reason = first_line(result.reason);
    out += reason.empty() ? "<tr>" : "<tr class=\"explained\">";
    out += result.record.step > 0
               ? fmt::format("<td><a href=\"jobs/{0}/report.html\">{0}</a></td>", escape_html(job.name))
               : "<td>" + escape_html(job.name) + "</td>";
    for (const std::string& key : keys)
      out += fmt::format("<td{}>{}</td>", gives(job, key) ? "" : " class=\"dim\"",
                         escape_html(value_of(job, key)));
    out += fmt::format("<td class=\"{}\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>",
                       class_of(result.status), name_of(result.status), result.record.step,
                       loss_text(result.record.loss));
    if (validation) out += "<td class=\"n\">" + loss_text(result.record.validation_loss) + "</td>";
    out += fmt::format(
        "<td class=\"n\">{}</td></tr>\n",
        result.record.tokens_per_second > 0 ? io::short_number(result.record.tokens_per_second) : "-");
    if (!reason.empty())
      out += fmt::format("<tr class=\"reason\"><td colspan=\"{}\" class=\"dim\">{}</td></tr>\n",
                         keys.size() + (validation ? 6 : 5), escape_html(reason));
  }
  return out + "</table></div>\n";
}

std::string cards(const Sweep& sweep, const std::vector<JobResult>& results) {
  const auto card = [](const std::string& value, const std::string& name) {
    return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>\n", escape_html(value),
                       escape_html(name));
  };
  std::string out = "<div class=\"cards\">\n" + card(std::to_string(results.size()), "jobs");
  for (const JobStatus status :
       {JobStatus::done, JobStatus::stopped_early, JobStatus::failed, JobStatus::refused, JobStatus::open}) {
    const auto count =
        std::count_if(results.begin(), results.end(), [&](const JobResult& r) { return r.status == status; });
    if (count > 0)
      out +=
          card(std::to_string(count), status == JobStatus::stopped_early ? "stopped early" : name_of(status));
  }
  if (const auto best = best_job(results)) {
    const JobRecord& record = results[*best].record;
    out += card(sweep.jobs[*best].name, "best job");
    out += card(loss_text(record.validation_loss ? record.validation_loss : record.loss),
                record.validation_loss ? "its validation loss" : "its loss");
  }
  return out + "</div>\n";
}

}  // namespace

std::string sweep_page(const Sweep& sweep, const std::vector<JobResult>& results) {
  return fmt::format(
             "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
             "content=\"width=device-width, initial-scale=1\">\n<title>{0} &middot; trainerd "
             "sweep</title>\n<style>{1}{2}{3}</style></head>\n<body><main>\n<h1>{0}</h1>\n",
             escape_html(sweep.name), io::page_style(), io::parallel_style(), kTableStyle) +
         cards(sweep, results) + chart(sweep, results) + table(sweep, results) + "</main></body></html>\n";
}

}  // namespace trainerd::core::sweep
