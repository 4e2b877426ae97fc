#include <utility>

#include "io/metrics/sinks.h"
#include "io/metrics/step_lines.h"

namespace trainerd::io {

struct JsonlSink::State {
  StepLines lines;
  double last_tries = 0;
};

JsonlSink::JsonlSink(std::string path, std::int64_t start_step, double last_tries)
    : state_(std::make_unique<State>(
          State{StepLines(std::move(path), "steps.jsonl", start_step,
                          [](const std::string& line) { return parse_step_record(line).step; }),
                last_tries})) {}

const std::string& JsonlSink::warning() const { return state_->lines.warning(); }

JsonlSink::~JsonlSink() = default;

void JsonlSink::on_step(const StepRecord& record) { state_->lines.append(record.step, to_json_line(record)); }

void JsonlSink::on_restart(const RestartRecord& record) { state_->lines.take_back_after(record.step); }

void JsonlSink::on_finish(const RunSummary&) { state_->lines.finish(state_->last_tries); }

std::vector<OutletRecord> JsonlSink::outlets() const { return {state_->lines.record()}; }

struct SamplesSink::State {
  StepLines lines;
  double last_tries = 0;
  std::int64_t attempt = 1;
};

SamplesSink::SamplesSink(const std::string& path, std::int64_t start_step, std::int64_t attempt,
                         double last_tries)
    : state_(std::make_unique<State>(
          State{StepLines(path, "samples.jsonl", start_step,
                          [](const std::string& line) { return parse_samples_record(line).step; }),
                last_tries, attempt})) {}

const std::string& SamplesSink::warning() const { return state_->lines.warning(); }

SamplesSink::~SamplesSink() = default;

void SamplesSink::on_step(const StepRecord& record) {
  state_->lines.append(record.step, to_json_line(SamplesRecord{.step = record.step,
                                                               .first = record.first_sample,
                                                               .count = record.samples,
                                                               .attempt = state_->attempt,
                                                               .sources = record.source_samples,
                                                               .counted_tokens = record.counted_tokens}));
}

void SamplesSink::on_restart(const RestartRecord& record) {
  state_->lines.take_back_after(record.step);
  ++state_->attempt;
}

void SamplesSink::on_finish(const RunSummary&) { state_->lines.finish(state_->last_tries); }

std::vector<OutletRecord> SamplesSink::outlets() const { return {state_->lines.record()}; }

}  // namespace trainerd::io
