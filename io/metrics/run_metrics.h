#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/metrics/sink.h"

namespace prometheus {
class Collectable;
}

namespace trainerd::io {

/// A run's records as metrics of prometheus-cpp. Sinks that serve or send them derive from it.
class RunMetrics : public MetricsSink {
 public:
  /// `powercap`: see CpuEnergy.
  explicit RunMetrics(const std::string& powercap);
  ~RunMetrics() override;
  /// Can be collected at any time from any thread; they may outlive this.
  std::vector<std::shared_ptr<prometheus::Collectable>> collectables() const;

  void on_start(const RunInfo&) override;
  void on_step(const StepRecord&) override;
  void on_evaluation(const EvaluationRecord&) override;
  void on_checkpoint(const CheckpointRecord&) override;
  void on_cadence(const CadenceRecord&) override;
  void on_snapshot(const SnapshotRecord&) override;
  void on_partner_copy(const PartnerCopyRecord&) override;
  void on_checkpoint_failure(const CheckpointFailureRecord&) override;
  void on_durable(const DurableRecord&) override;
  void on_rank_status(const RankStatusRecord&) override;
  void on_device(const DeviceRecord&) override;
  void on_device_finding(const DeviceFindingRecord&) override;
  void on_prediction(const PredictionRecord&) override;
  void on_outlet(const OutletRecord&) override;
  void on_rendezvous(const RendezvousRecord& record) override;
  void on_nodes(const NodesRecord& record) override;
  void on_notice(const NoticeRecord& record) override;
  void on_corruption(const CorruptionRecord&) override;
  void on_spike(const SpikeRecord&) override;
  void on_restart(const RestartRecord&) override;
  void on_preflight(const PreflightRecord&) override;
  void on_link(const LinkRecord&) override;
  void on_hang(const HangRecord&) override;
  void on_straggler(const StragglerRecord&) override;
  void on_finish(const RunSummary&) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
