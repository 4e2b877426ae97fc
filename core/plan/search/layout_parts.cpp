#include "core/plan/search/layout_parts.h"

#include "core/rank/dry_run.h"
#include "parallel/layout/split.h"

namespace trainerd::core::plan {

/// A layout with the same grid.
const parallel::Layout& LayoutParts::like(const LayoutChoice& c) {
  return layouts_.get(grid_of(c), [&] {
    return parallel::resolve_layout(with_choice(job_, c).parallel, topology_, rank::model_costs(job_.model),
                                    microbatches(c));
  });
}

parallel::Layout LayoutParts::layout(const LayoutChoice& c) {
  parallel::Layout layout = like(c);
  layout.options = with_choice(job_, c).parallel;
  if (c.bucket_bytes == 0)
    layout.options.bucket_bytes = parallel::default_bucket_bytes(c.most_gradient_ranks());
  layout.chunks = chunks(c);
  return layout;
}

const GroupPlaces& LayoutParts::places(const LayoutChoice& c) {
  return places_.get(grid_of(c), [&] { return GroupPlaces(job_.model, layout(c), topology_); });
}

const std::vector<parallel::ChunkSpan>& LayoutParts::chunks(const LayoutChoice& c) {
  return chunks_.get({c.schedule, c.pp, c.virtual_stages}, [&] {
    return parallel::split_layers(parallel::schedule_shape(with_choice(job_, c).parallel, 1),
                                  rank::model_costs(job_.model));
  });
}

const std::vector<train::SlotCounts>& LayoutParts::slots(const LayoutChoice& c) {
  const Shape shape{c.schedule, c.pp, c.virtual_stages, microbatches(c)};
  // Pools of slots depend on which layers are recomputed.
  const std::int64_t every = c.recompute.kind == job::RecomputeKind::full ? c.recompute.every : 0;
  const train::Pools& pools =
      pools_.get({shape, every}, [&] { return train::all_pools(with_choice(job_, c), layout(c)); });
  const job::JobSpec job = with_choice(job_, c);
  std::vector<std::int64_t> counts;
  for (const std::int64_t global : job.batch.sizes()) counts.push_back(job.microbatches(global));
  return slots_.get({shape, pools, counts}, [&] { return train::count_all_slots(job, layout(c), pools); });
}

}  // namespace trainerd::core::plan
