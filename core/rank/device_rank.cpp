#include "core/rank/device_rank.h"

#include <utility>

#include "core/rank/backend.h"
#include "core/rank/gemm_algorithms.h"

namespace trainerd::core::rank {

parallel::Layout layout_of(const job::JobSpec& job, const parallel::Topology& topology) {
  return parallel::resolve_layout(job.parallel, topology, model_costs(job.model), job.microbatches());
}

DeviceRank::DeviceRank(const job::JobSpec& job, const parallel::Layout& layout,
                       const parallel::Topology& topology, std::int64_t rank, parallel::World& world,
                       Observe observe, const std::string& gemm_algorithms, kernels::Observation when)
    : layout_(layout),
      plan_(dry_run(job, layout_, rank, topology.device)),
      pool_(topology.device.threads),
      backend_(make_backend(topology, pool_, rank)) {
  backend_->tune(topology.device.tuning);
  backend_->limit_attention(plan_.attention_limit_bytes);
  if (observe) observed_ = std::make_unique<kernels::ObservedBackend>(*backend_, std::move(observe), when);
  else if (topology.device.kind == kernels::DeviceKind::cuda && job.cuda_graphs == job::CudaGraphs::automatic)
    graphs_ = std::make_unique<kernels::GraphBackend>(*backend_);
  const bool timed = job.gemm_algorithms == job::GemmAlgorithms::timed;
  if (timed && rank == 0)
    gemm_algorithms_ = gemm_algorithms.empty()
                           ? backend().time_gemms(gemms_of_all_ranks(job, layout_, topology.device))
                           : gemm_algorithms;
  const std::int64_t pipeline_rank =
      layout_.grid.coordinate(rank)[static_cast<std::size_t>(parallel::Axis::pp)];
  memory_ = std::make_unique<train::StepMemory>(backend(), train::count_slots(job, layout_, pipeline_rank),
                                                plan_.memory);
  groups_ = std::make_unique<train::RankGroups>(layout_, rank, job.model, world, backend());
  if (timed) {
    gemm_algorithms_ = share_text(gemm_algorithms_, backend(), groups_->world());
    backend().use_gemms(gemm_algorithms_);
  }
  trainer_ = std::make_unique<train::Trainer>(job, layout_, backend(), *groups_, *memory_);
}

DeviceRank::DeviceRank(const job::JobSpec& job, const parallel::Topology& topology, Observe observe,
                       kernels::Observation when, const std::string& gemm_algorithms)
    : DeviceRank(job, layout_of(job, topology), topology, 0, alone_, std::move(observe), gemm_algorithms,
                 when) {}

}  // namespace trainerd::core::rank
