#include "core/run/worker/rank_status.h"

#include <algorithm>
#include <utility>

#include "core/run/worker/batches.h"
#include "kernels/base/clock.h"
#include "kernels/base/process_memory.h"

namespace trainerd::core::run {
namespace {

constexpr double kStatusSeconds = 1;

}  // namespace

void RankStatus::add(const io::StepRecord& record) {
  status_.step = record.step;
  ++status_.steps;
  ++new_steps_;
  new_seconds_ += record.step_seconds;
  for (const base::LedgerPartInfo& part : base::kLedgerParts)
    status_.time[part.part] += std::max(0.0, record.time[part.part]);
}

bool RankStatus::due() const {
  return taken_at_ < 0 || base::monotonic_seconds() - taken_at_ >= kStatusSeconds;
}

io::RankStatusRecord RankStatus::take(std::int64_t rank, rank::DeviceRank& device,
                                      const io::DataFiles& files) {
  taken_at_ = base::monotonic_seconds();
  status_.rank = rank;
  if (new_steps_ > 0)
    status_.step_seconds =
        std::exchange(new_seconds_, 0.0) / static_cast<double>(std::exchange(new_steps_, 0));
  status_.memory_used_bytes = device.memory().budget().total_bytes();
  status_.memory_planned_bytes = device.plan().memory.total_bytes();
  status_.resident_bytes = base::resident_bytes();
  status_.reads = object_reads(files);
  return status_;
}

}  // namespace trainerd::core::run
