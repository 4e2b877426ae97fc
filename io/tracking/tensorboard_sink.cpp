#include "io/tracking/event_file.h"
#include "io/tracking/scalars.h"
#include "io/tracking/tracking.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr double kLastSeconds = 5;  // as for the logs

}  // namespace

struct TensorboardSink::State {
  EventFile file;
};

TensorboardSink::TensorboardSink(const std::string& folder, std::int64_t start_step)
    : state_(std::make_unique<State>(State{EventFile(folder, base::wall_seconds())})) {
  state_->file.append(start_event(base::wall_seconds(), start_step + 1));
}

TensorboardSink::~TensorboardSink() = default;

void TensorboardSink::on_step(const StepRecord& record) {
  state_->file.append(scalars_event(record.wall_time, record.step, scalars_of(record)));
}

void TensorboardSink::on_evaluation(const EvaluationRecord& record) {
  state_->file.append(scalars_event(record.wall_time, record.step, scalars_of(record)));
}

void TensorboardSink::on_restart(const RestartRecord& record) {
  state_->file.append(start_event(base::wall_seconds(), record.step + 1));
}

void TensorboardSink::on_finish(const RunSummary&) {
  EventFile& file = state_->file;
  if (!file.finish(kLastSeconds))
    throw base::spec_error(std::to_string(file.record().dropped) + " events are missing in " + file.path() +
                           ": " + file.record().error);
}

std::vector<OutletRecord> TensorboardSink::outlets() const { return {state_->file.record()}; }

}  // namespace trainerd::io
