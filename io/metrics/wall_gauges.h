#pragma once

#include <prometheus/family.h>
#include <prometheus/gauge.h>

#include "io/records/records.h"

namespace trainerd::io {

/// The wall time of a run, split into parts, one gauge each. Absent until `begin` is called.
class WallGauges {
 public:
  explicit WallGauges(prometheus::Family<prometheus::Gauge>& family) : family_(family) {}
  /// `earlier`: ledger of the run's earlier processes.
  void begin(const WallLedger& earlier) {
    ledger_ = earlier;
    begun_ = true;
  }
  void on_step(const StepRecord& r) {
    ledger_.step(r.step, r.wall_time, r.step_seconds, r.time[base::LedgerPart::checkpoint]);
    show();
  }
  void on_evaluation(const EvaluationRecord& r) {
    ledger_.evaluation(r.wall_time, r.seconds);
    show();
  }
  void on_notice(const NoticeRecord& r) {
    add_to(ledger_, r);
    show();
  }
  void on_checkpoint(const CheckpointRecord& r) { ledger_.keep(r.step); }

 private:
  void show() {
    for (std::size_t part = 0; begun_ && part < kWallParts.size(); ++part)
      family_.Add({{"part", kWallParts[part]}}).Set(ledger_.seconds(static_cast<WallPart>(part)));
  }
  prometheus::Family<prometheus::Gauge>& family_;
  WallLedger ledger_;
  bool begun_ = false;
};

}  // namespace trainerd::io
