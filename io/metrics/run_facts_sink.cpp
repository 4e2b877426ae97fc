#include <utility>

#include "io/metrics/report/page_writer.h"
#include "io/metrics/sinks.h"
#include "io/runs/status.h"

namespace trainerd::io {

struct RunFactsSink::State {
  PageWriter writer;
  RunInfo info;
  PredictionRecord prediction;

  explicit State(const std::string& path) : writer(path, "run.json") {}
  std::string text() const { return run_json(info, prediction) + "\n"; }
  void write() { writer.write(text()); }
};

RunFactsSink::RunFactsSink(const std::string& path) : state_(std::make_unique<State>(path)) {}
RunFactsSink::~RunFactsSink() = default;

void RunFactsSink::on_start(const RunInfo& info) {
  state_->info = info;
  state_->write();
}
void RunFactsSink::on_step(const StepRecord&) {}
void RunFactsSink::on_prediction(const PredictionRecord& record) {
  state_->prediction = record;
  state_->write();
}
void RunFactsSink::on_finish(const RunSummary&) { state_->writer.write_last(state_->text(), kLastTries); }
std::vector<OutletRecord> RunFactsSink::outlets() const { return {state_->writer.record()}; }

}  // namespace trainerd::io
