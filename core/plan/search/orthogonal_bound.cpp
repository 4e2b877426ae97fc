#include "core/plan/search/orthogonal_bound.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/model/parameters.h"
#include "core/plan/cost/cost_model.h"
#include "core/train/newton_schulz.h"
#include "kernels/meta/meta_backend.h"

namespace trainerd::core::plan {

double orthogonal_seconds(job::ModelOptions model, MlpKind mlp, const parallel::Topology& topology) {
  model.experts.every = 1, model.experts.dense_layers = mlp == MlpKind::dense ? 1 : 0;
  double seconds = 0;
  kernels::MetaBackend backend(topology.device, [&](const kernels::MetaCall& call) {
    seconds += op_seconds({call.op, call.what, call.cost}, topology);
  });
  kernels::Arena scratch = kernels::Arena::dry("scratch");
  const auto stream = backend.make_stream("compute", &scratch);
  std::vector<std::pair<double, double>> matrices;  // FLOPs, seconds
  const parallel::ChunkSpan layer{.first_layer = 0, .layers = 1, .embedding = false, .head = false};
  for (const model::ParamInfo& info :
       model::declare_parameters(model, {&layer, 1}, 1, false, model::kLogicalVocab).infos) {
    if (info.shard.granularity != parallel::Granularity::matrix) continue;
    for (const parallel::WholeMatrix& whole : parallel::whole_matrices(info.shard, 1)) {
      const kernels::Shape wide{std::min(whole.rows, whole.columns), std::max(whole.rows, whole.columns)};
      const kernels::ArenaScope scope(scratch);
      const kernels::Tensor x = scratch.take(kernels::DType::f32, wide, kernels::MemoryTerm::workspace),
                            other = scratch.take(kernels::DType::f32, wide, kernels::MemoryTerm::workspace);
      seconds = 0;
      train::newton_schulz(backend, *stream, x, other);
      matrices.emplace_back(train::newton_schulz_flops(whole.rows, whole.columns), seconds);
    }
  }
  // A round lasts as long as its matrix with most FLOPs, so no smaller matrix may count for more.
  std::sort(matrices.rbegin(), matrices.rend());
  double sum = 0, least = matrices.empty() ? 0 : matrices.front().second;
  for (const auto& [flops, taken] : matrices) sum += least = std::min(least, taken);
  return sum;
}

}  // namespace trainerd::core::plan
