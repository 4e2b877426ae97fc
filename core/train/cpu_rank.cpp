#include "core/train/cpu_rank.h"

#include <utility>

#include "parallel/local/local_communicator.h"

namespace trainerd::core {

CpuRank::CpuRank(const JobSpec& job, const parallel::Topology& topology,
                 std::function<void(const kernels::ObservedCall&)> observe)
    : layout_(parallel::resolve_layout(job.parallel, topology, job.model.layers)),
      plan_(dry_run(job, layout_, topology.device)),
      pool_(topology.device.threads),
      backend_(topology.device, pool_) {
  if (observe) observed_ = std::make_unique<kernels::ObservedBackend>(backend_, std::move(observe));
  single_ = parallel::make_single_rank(backend());
  memory_ = std::make_unique<StepMemory>(backend(), count_slots(job, layout_), plan_.memory);
  trainer_ = std::make_unique<Trainer>(job, layout_, backend(), Communicators{*single_, *single_, *single_}, *memory_);
}

}  // namespace trainerd::core
