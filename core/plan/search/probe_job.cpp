#include "core/plan/search/probe_job.h"

#include <string>

#include "core/plan/cost/group_places.h"
#include "kernels/base/error.h"

namespace trainerd::core::plan {

ProbeJob probe_job(const job::JobSpec& job, LayoutChoice choice, const parallel::ChunkSpan& chunk,
                   MlpKind mlp, std::int64_t microbatches) {
  choice.pp = chunk.embedding && chunk.head ? 1 : 3, choice.virtual_stages = 1;
  ProbeJob probe{.job = with_choice(job, choice), .layout = {}};
  probe.stage = chunk.embedding ? 0 : chunk.head ? 2 : 1;
  probe.job.batch.ramp.clear();
  probe.job.batch.global = microbatches * choice.micro * choice.dp;
  probe.layout.options = probe.job.parallel;
  if (choice.bucket_bytes == 0)
    probe.layout.options.bucket_bytes = parallel::default_bucket_bytes(choice.most_gradient_ranks());
  // Three stages represent any number of stages. The probe may have more ranks than a job may.
  parallel::AxisOrder order = parallel::kDefaultOrder;
  std::string problem;
  const parallel::ParallelOptions& sizes = probe.job.parallel;
  base::check(parallel::parse_order(sizes.order, order, problem), "the order of a checked job");
  probe.layout.grid = parallel::ProcessGrid({sizes.tp, sizes.cp, 1, sizes.dp, sizes.pp}, order);
  const std::int64_t stage = sizes.tp * sizes.cp * sizes.dp, etp = sizes.expert_tp();
  probe.layout.expert_grid =
      parallel::ProcessGrid({etp, 1, sizes.ep, stage / (etp * sizes.ep), sizes.pp}, order);
  probe.layout.dp_levels = {choice.gradient_ranks(), choice.gradient_ranks(), false};
  std::int64_t first = 0;
  for (std::int64_t s = 0; s < choice.pp; ++s) {
    const std::int64_t layers = s == probe.stage ? chunk.layers : 1;
    probe.layout.chunks.push_back(
        {.first_layer = first, .layers = layers, .embedding = s == 0, .head = s + 1 == choice.pp});
    first += layers;
  }
  probe.job.model.layers = first;
  // The bounds assume one kind of layer: the sliding one, which is faster.
  probe.job.model.attention.pattern.clear();
  // Experts' biases are left out: what they take is less than their alignment.
  probe.job.model.experts.bias = false;
  probe.job.model.experts.every = 1;
  probe.job.model.experts.dense_layers = mlp == MlpKind::dense ? first : 0;
  probe.rank = representative(probe.layout, probe.stage);
  return probe;
}

}  // namespace trainerd::core::plan
