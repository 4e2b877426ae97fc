#pragma once

#include <cstdint>

#include "core/rank/device_rank.h"
#include "io/files/data_files.h"
#include "io/records/records.h"

namespace trainerd::core::run {

/// Sums up the steps of a rank. A status is due about once per second, so its cost per step is negligible.
class RankStatus {
 public:
  void add(const io::StepRecord& record);
  /// True after the first step, and then one second after the last status.
  bool due() const;
  io::RankStatusRecord take(std::int64_t rank, rank::DeviceRank& device, const io::DataFiles& files);

 private:
  io::RankStatusRecord status_;
  double taken_at_ = -1;    ///< -1: never
  double new_seconds_ = 0;  ///< of the steps since then
  std::int64_t new_steps_ = 0;
};

}  // namespace trainerd::core::run
