#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "io/metrics/families.h"
#include "io/records/records.h"

namespace trainerd::io {

/// Metrics of each rank of a node, labelled with the rank's number.
class RankMetrics {
 public:
  explicit RankMetrics(prometheus::Registry& registry);
  void on_status(const RankStatusRecord& record);
  /// Prepares for new workers, whose counts restart at 0.
  void on_restart();

 private:
  struct Rank {
    prometheus::Gauge *step = nullptr, *step_seconds = nullptr, *used = nullptr, *planned = nullptr;
    prometheus::Counter* steps = nullptr;
    std::array<prometheus::Counter*, base::kLedgerParts.size()> time{};
    std::array<prometheus::Counter*, 6> reads{};  ///< of an object store; null if its data is local
    std::array<double, 6> reads_before{};
    double steps_before = 0;  ///< counted by the workers before a restart
    std::array<double, base::kLedgerParts.size()> time_before{};
  };
  Rank& rank(std::int64_t number);

  prometheus::Family<prometheus::Gauge>&step_, &step_seconds_, &used_, &planned_, &resident_;
  prometheus::Family<prometheus::Counter>&steps_, &time_;
  std::array<prometheus::Family<prometheus::Counter>*, 6> reads_;
  std::map<std::int64_t, Rank> ranks_;
};

}  // namespace trainerd::io
