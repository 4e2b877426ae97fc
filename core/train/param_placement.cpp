#include "core/train/param_placement.h"

namespace trainerd::core::train {

model::ParamPlacement param_placement(const parallel::Layout& layout, const RankGroups& groups,
                                      std::int64_t microbatches) {
  const auto place = layout.grid.coordinate(groups.rank());
  return {.tp = layout.options.tp,
          .tp_rank = place[static_cast<std::size_t>(parallel::Axis::tp)],
          .dp = groups.data_parallel(layout),
          .expert_dp = groups.expert_data_parallel(layout),
          .whole_experts = layout.options.whole_experts(),
          .zero = layout.options.zero,
          .microbatches = microbatches,
          .bucket_bytes = layout.options.bucket_bytes,
          .host = groups.host_link(),
          .offload_params = layout.options.offload_params,
          .offload_grads = layout.options.offload_grads};
}

model::ExpertShare expert_share(const parallel::Layout& layout, std::int64_t rank) {
  return {layout.options.ep, layout.place(rank, parallel::Axis::ep), layout.options.experts_apart()};
}

}  // namespace trainerd::core::train
