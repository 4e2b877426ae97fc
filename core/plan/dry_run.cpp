#include "core/plan/dry_run.h"

#include <algorithm>
#include <vector>

#include "core/train/snapshot.h"
#include "core/train/trainer.h"
#include "kernels/base/error.h"
#include "kernels/meta/meta_backend.h"
#include "parallel/meta/meta_communicator.h"

namespace trainerd::core {
namespace {

std::string gibibytes(std::int64_t bytes) {
  const std::int64_t hundredths = (bytes * 100 + (std::int64_t{1} << 29)) >> 30;
  const std::string fraction = std::to_string(hundredths % 100);
  return std::to_string(hundredths / 100) + "." + (fraction.size() < 2 ? "0" : "") + fraction + " GiB";
}

}  // namespace

DryRun dry_run(const JobSpec& job, const parallel::Layout& layout, const kernels::Target& target) {
  DryRun result;
  bool counting = false;
  kernels::MetaBackend backend(target, [&](const kernels::MetaCall& call) {
    if (!counting) return;
    result.flops_per_step += call.cost.flops;
    ++result.operator_calls;
  });
  const auto single = parallel::make_meta_communicator(0, 1, {});
  StepMemory memory(count_slots(job, layout));
  Trainer trainer(job, layout, backend, {*single, *single, *single}, memory);
  trainer.initialise();
  const std::vector<std::int32_t> samples(
      static_cast<std::size_t>(trainer.samples_per_step() * (job.model.seq_len + 1)), 0);
  counting = true;
  trainer.step(1, samples, {});
  counting = false;
  // Prepared weights are made anew after an update, so a second step is as large as the first; evaluation may be larger.
  if (job.evaluate.every > 0) trainer.evaluate(samples);
  result.memory = memory.plan();
  result.snapshot_bytes = Snapshot(trainer.params()).bytes();
  return result;
}

void require_fits(const DryRun& plan, const JobSpec& job, const parallel::Topology& topology, std::int64_t snapshots) {
  const std::int64_t need = plan.memory.total_bytes() + snapshots * plan.snapshot_bytes;
  if (need <= topology.node_memory_bytes) return;
  const kernels::MemoryPlan::Region* largest = nullptr;
  std::string terms;
  for (const auto& region : plan.memory.regions) {
    if (largest == nullptr || region.bytes > largest->bytes) largest = &region;
    terms += "\n  " + region.name + ": " + gibibytes(region.bytes);
    for (const auto& [term, bytes] : region.terms) terms += "\n    " + term + ": " + gibibytes(bytes);
  }
  terms += "\n  snapshots of checkpoints (" + std::to_string(snapshots) + "): " + gibibytes(snapshots * plan.snapshot_bytes);
  std::string advice = "a smaller model (model.layers, model.hidden)";
  if (largest != nullptr && largest->name != "persistent" && job.batch.micro > 1)
    advice = "batch.micro: " + std::to_string(std::max<std::int64_t>(1, job.batch.micro / 2)) + " (it is " +
             std::to_string(job.batch.micro) + ")";
  throw base::capacity_error("rank 0 does not fit: it needs " + gibibytes(need) + " and the node has " +
                             gibibytes(topology.node_memory_bytes) + terms + "\n  the largest region is " +
                             (largest == nullptr ? "none" : largest->name) + "; try " + advice);
}

}  // namespace trainerd::core
