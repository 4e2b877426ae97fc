#pragma once

#include "io/records.h"

namespace trainerd::io {

/// Receives what a run does. Called from one thread. A sink that cannot write throws; it never drops
/// silently.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void on_start(const RunInfo&) {}
  virtual void on_step(const StepRecord&) = 0;
  virtual void on_evaluation(const EvaluationRecord&) {}
  virtual void on_checkpoint(const CheckpointRecord&) {}
  virtual void on_notice(const NoticeRecord&) {}
  virtual void on_device(const DeviceRecord&) {}
  virtual void on_prediction(const PredictionRecord&) {}
  virtual void on_finish(const RunSummary&) {}
};

}  // namespace trainerd::io
