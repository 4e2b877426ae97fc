#pragma once

#include "io/records/ranks.h"
#include "io/records/records.h"

namespace trainerd::io {

/// Receives the records of a run. Called from one thread. A sink that cannot write continues and counts its
/// losses (`outlets`); it throws only at the end.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void on_start(const RunInfo&) {}
  virtual void on_step(const StepRecord&) = 0;
  virtual void on_evaluation(const EvaluationRecord&) {}
  virtual void on_evaluation_progress(const EvaluationProgress&) {}
  virtual void on_checkpoint(const CheckpointRecord&) {}
  virtual void on_snapshot(const SnapshotRecord&) {}
  virtual void on_partner_copy(const PartnerCopyRecord&) {}
  virtual void on_checkpoint_failure(const CheckpointFailureRecord&) {}
  virtual void on_durable(const DurableRecord&) {}
  virtual void on_cadence(const CadenceRecord&) {}
  virtual void on_notice(const NoticeRecord&) {}
  virtual void on_rank_status(const RankStatusRecord&) {}
  virtual void on_device(const DeviceRecord&) {}
  virtual void on_device_finding(const DeviceFindingRecord&) {}
  /// Before `on_start` too.
  virtual void on_rank_state(const RankStateRecord&) {}
  virtual void on_rank_memory(const RankMemoryRecord&) {}
  virtual void on_rank_doing(const RankDoingRecord&) {}
  virtual void on_prediction(const PredictionRecord&) {}
  virtual void on_outlet(const OutletRecord&) {}
  virtual void on_rendezvous(const RendezvousRecord&) {}
  virtual void on_nodes(const NodesRecord&) {}
  virtual void on_corruption(const CorruptionRecord&) {}
  virtual void on_spike(const SpikeRecord&) {}
  /// Records of later steps become invalid; these steps will be reported again.
  virtual void on_restart(const RestartRecord&) {}
  virtual void on_preflight(const PreflightRecord&) {}
  virtual void on_link(const LinkRecord&) {}
  virtual void on_hang(const HangRecord&) {}
  virtual void on_straggler(const StragglerRecord&) {}
  virtual void on_finish(const RunSummary&) {}
  /// Current state of the files and streams that it writes to.
  virtual std::vector<OutletRecord> outlets() const { return {}; }
};

}  // namespace trainerd::io
