#include "core/rank/param_record.h"

#include "core/model/param_store.h"
#include "core/model/parameters.h"
#include "core/train/clocked_groups.h"
#include "core/train/optimizer.h"
#include "core/train/param_placement.h"
#include "core/train/snapshot.h"
#include "kernels/meta/meta_backend.h"
#include "parallel/group/world.h"

namespace trainerd::core::rank {
namespace {

using kernels::MemoryTerm;

/// The rank's parameters in the meta world.
class MetaParams {
 public:
  enum class Of : std::uint8_t { all, matrices };
  MetaParams(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank,
             const kernels::Target& target, Of of, parallel::MetaWorld::OnCollective on_collective = {})
      : backend_(target),
        world_(rank, std::move(on_collective)),
        groups_(layout, rank, job.model, world_, backend_),
        persistent_(kernels::Arena::dry("persistent", target.alignment)),
        host_(kernels::Arena::dry("host", target.alignment)),
        stream_(backend_.make_stream(train::kComputeStream, &scratch_)) {
    const std::int64_t stage = layout.grid.coordinate(rank)[static_cast<std::size_t>(parallel::Axis::pp)];
    std::vector<model::ParamInfo> infos =
        model::declare_parameters(job.model, parallel::chunks_of(layout, stage), job.microbatch_tokens(),
                                  layout.options.sequence_parallel, target.vocab_multiple,
                                  train::expert_share(layout, rank))
            .infos;
    if (of == Of::matrices) std::erase_if(infos, [](const model::ParamInfo& info) { return info.vectors; });
    const std::vector<model::ViewSpec> views = train::optimizer_views(job.optimizer, infos);
    params_.emplace(
        std::move(infos), views, job.precision, train::param_placement(layout, groups_, job.microbatches()),
        backend_,
        model::ParamMemory{
            .persistent = persistent_, .states = job.optimizer.offload ? host_ : persistent_, .host = host_});
  }

  model::ParamStore& params() { return *params_; }
  kernels::Stream& stream() { return *stream_; }
  /// On the device.
  std::int64_t bytes(MemoryTerm term) const {
    return persistent_.terms_at_peak()[static_cast<std::size_t>(term)];
  }

 private:
  kernels::MetaBackend backend_;
  parallel::MetaWorld world_;
  train::RankGroups groups_;
  kernels::Arena scratch_ = kernels::Arena::dry("scratch"), persistent_, host_;
  std::unique_ptr<kernels::Stream> stream_;
  std::optional<model::ParamStore> params_;
};

}  // namespace

std::int64_t param_bytes(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank,
                         const kernels::Target& target) {
  const MetaParams params(job, layout, rank, target, MetaParams::Of::all);
  return params.bytes(MemoryTerm::parameters) + params.bytes(MemoryTerm::gradients) +
         params.bytes(MemoryTerm::master_weights) + params.bytes(MemoryTerm::moments);
}

std::vector<io::TensorSlice> saved_slices(const job::JobSpec& job, const parallel::Layout& layout,
                                          std::int64_t rank, const kernels::Target& target) {
  MetaParams of(job, layout, rank, target, MetaParams::Of::all);
  return train::Snapshot(of.params()).slices();
}

std::vector<ParamCollective> param_collectives(const job::JobSpec& job, const parallel::Layout& layout,
                                               std::int64_t rank, const kernels::Target& target) {
  std::vector<ParamCollective> calls;
  MetaParams of(job, layout, rank, target, MetaParams::Of::matrices,
                [&](parallel::Group group, const parallel::MetaCollective& c) {
                  if (c.moment == parallel::CommMoment::issue && c.group_size > 1)
                    calls.push_back({group, c.kind, c.bytes});
                });
  model::ParamStore& params = of.params();
  params.begin_step(of.stream(), job.microbatches());
  for (std::int64_t m = 0; m < job.microbatches(); ++m) {
    for (model::ParamId id = 0; id < params.count(); ++id) {
      if (!params.info(id).has_grad()) continue;
      for (std::int64_t use = 0; use < params.info(id).grad_uses; ++use) {
        params.grad(id);
        params.grad_mode(id);
      }
      params.reduce_complete_grads();  // a unit's gradients before the next unit opens
    }
  }
  params.finish_grads();
  params.updated(of.stream());
  return calls;
}

}  // namespace trainerd::core::rank
