// A step whose update is left out: what ranks make of the same batch, and that nothing of it is kept.

#include <catch2/catch.hpp>
#include <utility>

#include "core/rank/record.h"
#include "core/train/canary_step.h"

#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

struct Made {
  core::train::Trainer::OwnResult result, other_batch;
  std::vector<std::byte> state;
  std::vector<double> losses;
};

/// All ranks get the batch of replica 0. `change`: of this rank's weights, before it.
std::vector<Made> made_by(const core::job::JobSpec& job, bool canary, std::int64_t change = -1,
                          std::int64_t devices_per_node = 64) {
  std::vector<Made> made(test::ranks_of(job));
  test::on_every_rank(
      job,
      [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
        core::train::Trainer& trainer = cpu.trainer();
        Made& own = made[static_cast<std::size_t>(rank)];
        const auto compute = [&](std::int64_t step) {
          const std::vector<std::int32_t> samples = test::skewed_samples(job, step);
          core::train::SampleBatches batches(
              trainer.alone_shape(), [&](std::int64_t sample, core::train::HostSample& to) {
                const auto count = static_cast<std::ptrdiff_t>(to.tokens_S1.size());
                std::copy_n(samples.begin() + sample * count, count, to.tokens_S1.begin());
              });
          return trainer.compute_alone(batches);
        };
        if (rank == change) {
          const core::model::StatePart& part = trainer.params().view(0).state_parts().front();
          const kernels::Tensor& params = part.params.data != nullptr ? part.params : part.master;
          params.data[params.bytes() / 2] ^= std::byte{64};
        }
        if (canary) own.result = compute(7), own.other_batch = compute(8);
        own.losses = test::losses(trainer, job, 1, 3);
        if (canary) compute(9);
        own.losses.push_back(test::step_on(trainer, job, 4).loss);
        own.state = test::state_of(trainer);
      },
      devices_per_node);
  return made;
}

core::job::JobSpec job_of(const std::string& precision, std::int64_t dp, int zero, std::int64_t tp = 1,
                          std::int64_t pp = 1) {
  core::job::JobSpec job = test::small_job(precision);
  job.parallel.dp = dp, job.parallel.zero = zero, job.parallel.tp = tp, job.parallel.pp = pp;
  job.batch.micro = 1, job.batch.global = 2 * dp;
  return job;
}

/// Checks that the same place in every replica has the same results, and that training is as without them.
void check_replicas(const core::job::JobSpec& job) {
  CAPTURE(job.parallel.zero, job.parallel.tp, job.parallel.pp, job.model.seq_len, job.data.document_mask);
  const std::vector<Made> with = made_by(job, true), without = made_by(job, false);
  parallel::Topology topology = test::cpu_topology(1);
  topology.devices_per_node = topology.nodes = 64;
  const parallel::Layout layout = core::rank::layout_of(job, topology);
  for (std::size_t rank = 0; rank < with.size(); ++rank) {
    CHECK(with[rank].losses == without[rank].losses);
    CHECK(with[rank].state == without[rank].state);
    CHECK(with[rank].result.gradients != 0);
    CHECK(with[rank].result.gradients != with[rank].other_batch.gradients);
    auto place = layout.grid.coordinate(static_cast<std::int64_t>(rank));
    place[static_cast<std::size_t>(parallel::Axis::dp)] = 0;
    const auto first = static_cast<std::size_t>(layout.grid.rank(place));
    CHECK(with[rank].result.loss == with[first].result.loss);
    CHECK(with[rank].result.gradients == with[first].result.gradients);
  }
}

parallel::Topology gpus() {
  return core::spec::job_topology(core::spec::parse_job(
      "model: {layers: 2, hidden: 256, heads: 4, ffn: 512, vocab: 1000, seq_len: 128}\nsteps: 1\n"
      "precision: bf16\ndata: {format: synthetic}\ncluster: {preset: dgx-h100}\n"
      "batch: {global: 8, micro: 1}\nparallel: {dp: 8}\n",
      "gpus.yaml"));
}

}  // namespace

TEST_CASE("replicas make the same of the same step, and training goes on as without it", "[canary]") {
  for (const core::job::JobSpec& job :
       {job_of("bf16", 2, 0), job_of("bf16", 2, 1), job_of("bf16", 2, 2), job_of("bf16", 2, 3),
        job_of("bf16", 2, 1, 2), job_of("bf16", 2, 1, 1, 2)})
    check_replicas(job);
}

TEST_CASE("that step has few tokens, in parts as large as the ranks of a layout need", "[canary]") {
  using kernels::GemmFormat;
  const auto shape_of = [](std::int64_t seq_len, std::int64_t micro, std::int64_t shares,
                           GemmFormat format = GemmFormat::plain) {
    parallel::ParallelOptions options;
    options.tp = shares, options.sequence_parallel = shares > 1;
    const core::train::BatchShape shape = core::train::canary_shape(
        {.seq_len = seq_len, .micro = micro, .dp = 4, .dp_rank = 3, .global = 64}, options, format);
    CHECK(shape.dp_rank == 0);
    CHECK(shape.global == 64);
    return std::pair(shape.micro, shape.seq_len);
  };
  CHECK(shape_of(4096, 8, 1) == std::pair<std::int64_t, std::int64_t>(1, 128));
  CHECK(shape_of(4096, 8, 3) == std::pair<std::int64_t, std::int64_t>(1, 129));
  CHECK(shape_of(64, 8, 1) == std::pair<std::int64_t, std::int64_t>(1, 64));
  // Context-parallel ranks have two chunks each.
  parallel::ParallelOptions context;
  context.cp = 3;
  CHECK(
      core::train::canary_shape({.seq_len = 4096, .micro = 8, .cp = 3}, context, GemmFormat::plain).seq_len ==
      132);
  // One sequence cannot be shared evenly.
  CHECK(shape_of(50, 4, 4) == std::pair<std::int64_t, std::int64_t>(4, 50));
  // In FP8 the tokens of a rank are a multiple of 16, or the step's own, of which a plan has made sure.
  CHECK(core::train::canary_shape({.seq_len = 4096, .micro = 8, .cp = 3}, context, GemmFormat::fp8).seq_len ==
        192);
  CHECK(shape_of(72, 2, 1, GemmFormat::fp8) == std::pair<std::int64_t, std::int64_t>(2, 72));
}

TEST_CASE("with few tokens replicas make the same too, and training goes on as without it", "[canary]") {
  core::job::JobSpec packed = job_of("fp32", 2, 1);
  packed.data.document_mask = true, packed.data.max_documents = 4;
  core::job::JobSpec shared = job_of("bf16", 2, 3, 2);
  shared.parallel.sequence_parallel = true;
  core::job::JobSpec context = job_of("bf16", 2, 2);
  context.parallel.cp = 2;
  core::job::JobSpec offloaded = job_of("bf16", 2, 3);
  offloaded.recompute.kind = core::job::RecomputeKind::full;
  offloaded.parallel.offload_params = offloaded.parallel.offload_grads = true;
  offloaded.parallel.offload_activations = true;
  for (core::job::JobSpec job :
       {job_of("bf16", 2, 0), shared, job_of("bf16", 2, 1, 1, 2), packed, context, offloaded}) {
    job.model.seq_len = 160;
    job.batch.micro = 2, job.batch.global = 8;
    job.loss.z_loss = job.parallel.pp > 1 ? 1e-3 : 0;
    check_replicas(job);
  }
}

TEST_CASE("that step needs no more memory than the job's own", "[canary]") {
  for (const std::string precision : {"fp32", "bf16"})
    for (const int zero : {0, 1, 3})
      for (const std::int64_t tp : {1, 2})
        for (const bool cuda : {false, true}) {
          CAPTURE(precision, zero, tp, cuda);
          core::job::JobSpec job = job_of(precision, 2, zero, tp);
          job.parallel.sequence_parallel = tp > 1;
          job.model.seq_len = 1024, job.model.hidden = 256, job.model.head_dim = 64, job.model.vocab = 1000;
          job.batch.micro = 4, job.batch.global = 16;
          parallel::Topology topology = cuda ? gpus() : test::cpu_topology(2);
          topology.devices_per_node = topology.nodes = 64;
          const parallel::Layout layout = core::rank::layout_of(job, topology);
          const auto regions = [&](const core::job::JobSpec& of) {
            return core::rank::record_rank(of, layout, 0, topology.device,
                                           core::train::count_slots(of, layout, 0))
                .memory.regions;
          };
          const auto whole = regions(job), few = regions(core::train::canary_job(job));
          REQUIRE(whole.size() == few.size());
          for (std::size_t i = 0; i < whole.size(); ++i) {
            CAPTURE(whole[i].name);
            CHECK(few[i].bytes <= whole[i].bytes);
          }
        }
}

TEST_CASE("a replica with other weights makes something else of it", "[canary]") {
  const std::vector<Made> made = made_by(job_of("fp32", 3, 0), true, 1);
  CHECK(made[0].result.gradients == made[2].result.gradients);
  CHECK(made[0].result.loss == made[2].result.loss);
  CHECK(made[1].result.gradients != made[0].result.gradients);
}

TEST_CASE("where sums have two levels, what ranks make is compared before the first", "[canary]") {
  for (const int zero : {1, 2, 3}) {
    CAPTURE(zero);
    const std::vector<Made> made = made_by(job_of("bf16", 4, zero), true, -1, 2);
    for (const Made& m : made) CHECK(m.result.gradients == made[0].result.gradients);
    CHECK(made[0].result.gradients != 0);
    CHECK(made[0].result.gradients != made[0].other_batch.gradients);
  }
}

TEST_CASE("what a step without its update makes does not depend on dropout's random numbers", "[canary]") {
  core::job::JobSpec job = job_of("fp32", 2, 1);
  job.model.dropout.residual = 0.2;
  const std::vector<Made> with = made_by(job, true), without = made_by(job, false);
  CHECK(with[0].result.loss == with[1].result.loss);
  CHECK(with[0].result.gradients == with[1].result.gradients);
  CHECK(with[0].state == without[0].state);
}
