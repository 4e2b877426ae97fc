#include "core/sweep/outcome.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/sweep/table.h"
#include "io/lines/step_log.h"
#include "io/metrics/event_log.h"
#include "io/text/json.h"
#include "io/text/text.h"

namespace trainerd::core::sweep {
namespace {

using Json = nlohmann::ordered_json;

std::optional<io::NoticeRecord> last_notice(const std::string& directory) {
  std::optional<io::NoticeRecord> last;
  io::read_event_log(directory + "/events.jsonl", kAllSteps, [&](const io::EventRecord& event) {
    const auto* notice = std::get_if<io::NoticeRecord>(&event);
    if (notice != nullptr && notice->kind != io::NoticeKind::warning) last = *notice;
  });
  return last;
}

Json number(const std::optional<double>& x) { return x && std::isfinite(*x) ? Json(*x) : Json(); }

}  // namespace

const char* name_of(JobStatus status) {
  switch (status) {
    case JobStatus::open: return "unfinished";
    case JobStatus::done: return "done";
    case JobStatus::failed: return "failed";
    case JobStatus::refused: return "refused";
    case JobStatus::stopped_early: return "stopped_early";
  }
  return "?";
}

JobRecord read_record(const std::string& directory, std::int64_t last_step) {
  JobRecord record;
  std::vector<double> speeds;
  io::read_step_log(directory + "/steps.jsonl", last_step, [&](const io::StepRecord& step) {
    record.step = step.step, record.loss = step.loss;
    speeds.push_back(step.tokens_per_second);
  });
  std::int64_t evaluated = -1;  // a restarted run may report a step twice
  io::read_event_log(directory + "/events.jsonl", last_step, [&](const io::EventRecord& event) {
    const auto* evaluation = std::get_if<io::EvaluationRecord>(&event);
    if (evaluation != nullptr && evaluation->step >= evaluated)
      evaluated = evaluation->step, record.validation_loss = evaluation->loss;
  });
  record.tokens_per_second = io::median(speeds);
  return record;
}

bool run_is_done(const std::string& directory, std::int64_t steps) {
  const auto last = last_notice(directory);
  return last && last->kind == io::NoticeKind::finish && last->step >= steps;
}

std::string failure_of(const std::string& directory) {
  const auto last = last_notice(directory);
  return last && last->kind == io::NoticeKind::failure ? first_line(last->message) : "";
}

std::optional<double> metric_at(const std::string& directory, HalvingMetric metric, std::int64_t step) {
  std::optional<double> value;
  if (metric == HalvingMetric::loss) {
    io::read_step_log(directory + "/steps.jsonl", step, [&](const io::StepRecord& record) {
      if (record.step == step) value = record.loss;
    });
  } else {
    io::read_event_log(directory + "/events.jsonl", step, [&](const io::EventRecord& event) {
      const auto* evaluation = std::get_if<io::EvaluationRecord>(&event);
      if (evaluation != nullptr && evaluation->step == step) value = evaluation->loss;
    });
  }
  return value;
}

std::string results_lines(const Sweep& sweep, const std::vector<JobResult>& results) {
  std::string lines;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const JobResult& result = results[i];
    if (result.status == JobStatus::open) continue;
    Json set = Json::object();
    for (const SetKey& key : sweep.jobs[i].set) set[key.path] = Json::parse(key.json);
    const double speed = result.record.tokens_per_second;
    Json line = {{"job", sweep.jobs[i].name},
                 {"set", std::move(set)},
                 {"status", name_of(result.status)},
                 {"step", result.record.step},
                 {"loss", number(result.record.loss)},
                 {"validation_loss", number(result.record.validation_loss)},
                 {"tokens_per_second", speed > 0 ? Json(speed) : Json()}};
    if (!result.reason.empty()) line["reason"] = result.reason;
    lines += io::to_text(line) + "\n";
  }
  return lines;
}

std::optional<std::size_t> best_job(const std::vector<JobResult>& results) {
  for (const auto metric : {&JobRecord::validation_loss, &JobRecord::loss}) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::optional<double>& value = results[i].record.*metric;
      if (results[i].status != JobStatus::done || !value || !std::isfinite(*value)) continue;
      if (!best || *value < *(results[*best].record.*metric)) best = i;
    }
    if (best) return best;
  }
  return std::nullopt;
}

std::string results_table(const Sweep& sweep, const std::vector<JobResult>& results) {
  const std::vector<std::string> keys = keys_of(sweep);
  std::vector<std::vector<std::string>> rows{{"job"}};
  rows[0].insert(rows[0].end(), keys.begin(), keys.end());
  for (const char* head : {"status", "step", "loss", "val. loss", "tokens/s", ""}) rows[0].emplace_back(head);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const JobResult& result = results[i];
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(sweep.jobs[i].name);
    for (const std::string& key : keys) row.push_back(value_of(sweep.jobs[i], key));
    row.emplace_back(name_of(result.status));
    row.push_back(std::to_string(result.record.step));
    row.push_back(loss_text(result.record.loss));
    row.push_back(loss_text(result.record.validation_loss));
    row.push_back(result.record.tokens_per_second > 0 ? io::short_number(result.record.tokens_per_second)
                                                      : "-");
    row.push_back(first_line(result.reason));
  }
  std::string text = text_table(rows);
  if (const auto best = best_job(results)) {
    const JobRecord& record = results[*best].record;
    text += "best: " + sweep.jobs[*best].name +
            (record.validation_loss ? ", validation loss " + loss_text(record.validation_loss)
                                    : ", loss " + loss_text(record.loss)) +
            "\n";
  }
  return text;
}

}  // namespace trainerd::core::sweep
