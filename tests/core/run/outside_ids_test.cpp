// Token ids outside the vocabulary. A device may see them although the host read valid ones.

#include <catch2/catch.hpp>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/run/worker/report_record.h"
#include "kernels/base/error.h"
#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

/// A step's samples, in which one token of sample `number` is `id`.
std::vector<std::int32_t> with_id(const core::job::JobSpec& job, std::int64_t number, std::int32_t id) {
  std::vector<std::int32_t> samples = test::skewed_samples(job, 3);
  samples[static_cast<std::size_t>(number * (job.model.seq_len + 1) + 5)] = id;
  return samples;
}

}  // namespace

TEST_CASE("a step with a token id outside the vocabulary names the rank and updates nothing",
          "[outside_ids]") {
  struct Case {
    std::int64_t tp, pp, dp;
    std::int64_t rank;  ///< the first rank that reads the last sample
  };
  for (const Case& c : {Case{1, 1, 1, 0}, Case{1, 1, 2, 1}, Case{2, 1, 1, 0}, Case{1, 2, 1, 0}})
    // 96 is the first id outside the vocabulary; with padding to 128 it is a padded row.
    for (const std::int32_t id : {96, -1, std::numeric_limits<std::int32_t>::max()})
      for (const std::int64_t multiple : {1, 128}) {
        CAPTURE(c.tp, c.pp, c.dp, id, multiple);
        core::job::JobSpec job = test::small_job();
        job.batch.micro = 1;
        job.parallel.tp = c.tp, job.parallel.pp = c.pp, job.parallel.dp = c.dp;
        parallel::Topology topology = test::cpu_topology(1);
        topology.devices_per_node = topology.nodes = 64;
        topology.device.vocab_multiple = multiple;
        const std::vector<std::int32_t> bad = with_id(job, job.batch.global - 1, id);
        std::vector<std::optional<std::int64_t>> good_ranks(test::ranks_of(job)), ranks = good_ranks;
        std::vector<char> kept(test::ranks_of(job), 0), later(test::ranks_of(job), 0);
        test::on_ranks_of(topology, job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
          const auto at = static_cast<std::size_t>(rank);
          core::train::Trainer& trainer = cpu.trainer();
          good_ranks[at] = test::step_on(trainer, job, 1).outside_rank;
          const std::vector<std::byte> before = test::state_of(trainer);
          ranks[at] = trainer.step(2, *test::batches(trainer, bad), {}).outside_rank;
          kept[at] = test::state_of(trainer) == before;
          later[at] = !test::step_on(trainer, job, 3).outside_rank && test::state_of(trainer) != before;
        });
        for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
          CHECK_FALSE(good_ranks[rank].has_value());
          CHECK(ranks[rank] == c.rank);
          CHECK(kept[rank]);
          CHECK(later[rank]);
        }
      }
}

TEST_CASE("an evaluation with a token id outside the vocabulary is an error of the data", "[outside_ids]") {
  const core::job::JobSpec job = test::small_job();
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  rank.trainer().initialise();
  const std::vector<std::int32_t> good = test::skewed_samples(job, 1), bad = with_id(job, 2, 96);
  const double loss = rank.trainer().evaluate(*test::batches(rank.trainer(), good)).loss;
  CHECK_THROWS_AS(rank.trainer().evaluate(*test::batches(rank.trainer(), bad)), base::DataError);
  CHECK(rank.trainer().evaluate(*test::batches(rank.trainer(), good)).loss == loss);
}

TEST_CASE("the rank that has the id ends the run with an error of the data, and others wait for it",
          "[outside_ids]") {
  struct Ended {};
  const core::train::StepReport good;
  core::job::JobSpec job = test::small_job();
  const auto wait = [] { throw Ended(); };
  CHECK_NOTHROW(core::run::require_updated(good, 7, 0, job, wait));
  core::train::StepReport outside;
  outside.outside_rank = 1;
  CHECK_THROWS_AS(core::run::require_updated(outside, 7, 0, job, wait), Ended);
  CHECK_THROWS_AS(core::run::require_updated(outside, 7, 1, job, wait), base::DataError);
  CHECK_THROWS_WITH(core::run::require_updated(outside, 7, 1, job, wait),
                    Catch::Contains("step 7") && Catch::Contains("vocabulary of 96"));
  core::train::StepReport crowded;
  crowded.crowded_rank = 1;
  job.parallel.ep_capacity = 2;
  CHECK_THROWS_AS(core::run::require_updated(crowded, 7, 0, job, wait), Ended);
  CHECK_THROWS_WITH(core::run::require_updated(crowded, 7, 1, job, wait),
                    Catch::Contains("ep_capacity 2 has memory"));
  job.parallel.ep_capacity = 1.25;
  CHECK_THROWS_AS(core::run::require_updated(crowded, 7, 1, job, wait), base::CapacityError);
  CHECK_THROWS_WITH(core::run::require_updated(crowded, 7, 1, job, wait),
                    Catch::Contains("ep_capacity 1.25 has memory"));
  core::train::StepReport skipped;
  skipped.skipped = true, skipped.nonfinite = "loss";
  CHECK_THROWS_AS(core::run::require_updated(skipped, 7, 0, job, wait), base::DivergedError);
  CHECK_THROWS_AS(core::run::require_updated(skipped, 7, 1, job, wait), Ended);
}
