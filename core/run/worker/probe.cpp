#include "core/run/worker/probe.h"

#include <string>
#include <utility>

#include "core/rank/canary.h"
#include "core/run/worker/link_probe.h"
#include "kernels/base/error.h"
#include "kernels/tensor/rng.h"

namespace trainerd::core::run {
namespace {

// Large enough that a GPU computes for longer than the launch takes.
constexpr std::int64_t kGpuSize = 4096;

}  // namespace

double probe_device(const job::JobSpec& job, std::int64_t rank, kernels::Backend& backend,
                    const rank::PeakRate& peak) {
  try {
    if (const std::string wrong = rank::wrong_products(backend, job.precision.compute); !wrong.empty())
      throw base::device_error("rank " + std::to_string(rank) + " computes wrongly before its first step: " +
                               wrong + "; take its device out of use, or its host where it has none");
    return peak.measured() ? peak.flops_per_second()
                           : rank::gemm_rate(backend, job.precision.compute, kGpuSize);
  } catch (const base::CapacityError&) {
    return 0;
  }
}

CanaryResult probe_step(const job::JobSpec& job, rank::DeviceRank& rank) {
  if (!job::has_canary(job)) return {};
  train::Trainer& trainer = rank.trainer();
  const train::BatchShape shape = trainer.alone_shape();
  train::SampleBatches batches(shape, [&](std::int64_t sample, train::HostSample& to) {
    for (std::size_t i = 0; i < to.tokens_S1.size(); ++i)
      to.tokens_S1[i] = static_cast<std::int32_t>(kernels::mix_keys(static_cast<std::uint64_t>(sample), i) %
                                                  static_cast<std::uint64_t>(job.model.vocab));
    if (shape.pairs) to.starts = {static_cast<std::int32_t>(shape.seq_len / 2)};
  });
  const train::Trainer::OwnResult made = trainer.compute_alone(batches);
  const std::int64_t number = rank.groups().rank();
  const kernels::Target& device = rank.backend().target();
  std::string kind = device.name + ", " + std::to_string(device.threads) + " threads";
  const parallel::ProcessGrid& grid = rank.layout().grid;
  for (const parallel::Axis axis :
       {parallel::Axis::tp, parallel::Axis::cp, parallel::Axis::ep, parallel::Axis::pp})
    kind += std::string(", ") + parallel::to_string(axis) + " " +
            std::to_string(grid.coordinate(number)[static_cast<std::size_t>(axis)]);
  return {.rank = number, .kind = std::move(kind), .loss = made.loss, .gradients = made.gradients};
}

std::vector<LinkTime> probe_nodes(const Start& start, rank::DeviceRank& rank) {
  // Workers that start again have little time; and a GPU may have no memory left for the messages.
  if (start.attempt > 1 || rank.backend().target().kind != kernels::DeviceKind::cpu) return {};
  return probe_links(rank.backend(), rank.groups().world(), start.node_count);
}

Ready look_at_rank(const job::JobSpec& job, const Start& start, rank::DeviceRank& rank, train::RankPage& page,
                   const rank::PeakRate& peak) {
  Ready ready;
  if (!job.supervise.preflight) return ready;
  ready.gemm_flops = probe_device(job, start.rank, rank.backend(), peak);
  // Other nodes may load for long.
  page.enter(train::Activity::meet);
  page.wait(parallel::Group::world);
  ready.links = probe_nodes(start, rank);
  page.resume();
  page.enter(train::Activity::load);
  ready.canary = probe_step(job, rank);
  return ready;
}

}  // namespace trainerd::core::run
