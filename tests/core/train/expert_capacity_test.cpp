// Steps in which more tokens choose a rank's experts than these have rows for.

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/model/parameters.h"
#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

core::job::JobSpec crowded_job(double capacity) {
  core::job::JobSpec job = test::small_job();
  job.model.experts = {.count = 2, .per_token = 1, .normalise = false};
  job.batch.micro = 1;
  job.parallel.dp = job.parallel.ep = 2;
  job.parallel.ep_capacity = capacity;
  return job;
}

}  // namespace

TEST_CASE("a rank's experts have rows for all that can choose them, or for the mean times the capacity",
          "[experts]") {
  core::job::ModelOptions model;
  model.experts = {.count = 8, .per_token = 2};
  using core::model::expert_rows;
  CHECK(expert_rows(model, 100, 1, 0) == 200);
  CHECK(expert_rows(model, 100, 4, 0) == 800);
  CHECK(expert_rows(model, 100, 4, 1.255) == 251);
  CHECK(expert_rows(model, 100, 4, 50) == 800);  // all tokens of four ranks, twice
  CHECK(expert_rows(model, 100, 4, 1e300) == 800);
  CHECK(expert_rows(model, 100, 8, 50) == 800);  // one expert each
  CHECK(expert_rows(model, 100, 2, 0) == 400);
}

TEST_CASE("slots for tokens at other ranks are the mean number times the capacity", "[experts]") {
  using core::model::expert_slots;
  using enum parallel::ExpertComm;
  core::job::ModelOptions model;
  model.experts = {.count = 8, .per_token = 2};
  // Both experts of a token are among the other six with a chance of 6/8 x 5/7.
  CHECK(expert_slots(model, 1000, 4, 1, all_to_all) == 465);
  CHECK(expert_slots(model, 1000, 4, 1.5, all_to_all) == 697);
  CHECK(expert_slots(model, 1000, 4, 3, all_to_all) == 1000);
  CHECK(expert_slots(model, 1000, 4, 1, all_gather) == 0);
  CHECK(expert_slots(model, 1000, 1, 1, all_to_all) == 0);
  model.experts = {.count = 8, .per_token = 7};
  CHECK(expert_slots(model, 1000, 2, 1, all_to_all) == 1000);  // each token has an expert at both
}

TEST_CASE("a step that crowds a rank's experts names the rank and updates nothing", "[experts]") {
  // With one row for each of a rank's tokens both experts must be chosen equally often.
  for (const auto& [crowded, sent] : {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
    CAPTURE(crowded, sent);
    core::job::JobSpec job = crowded_job(crowded ? 1 : sent ? 8 : 0);
    job.parallel.ep_comm = sent ? parallel::ExpertComm::all_to_all : parallel::ExpertComm::all_gather;
    std::vector<std::optional<std::int64_t>> ranks(test::ranks_of(job));
    std::vector<char> kept(test::ranks_of(job), 0);
    test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
      const auto at = static_cast<std::size_t>(rank);
      core::train::Trainer& trainer = cpu.trainer();
      const std::vector<std::byte> before = test::state_of(trainer);
      const core::train::StepReport report = test::step_on(trainer, job, 1);
      CHECK_FALSE(report.outside_rank.has_value());
      ranks[at] = report.crowded_rank;
      kept[at] = test::state_of(trainer) == before;
    });
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      CAPTURE(rank);
      CHECK(ranks[rank].has_value() == crowded);
      CHECK(ranks[rank] == ranks[0]);
      CHECK((kept[rank] != 0) == crowded);
    }
  }
}

TEST_CASE("a router without finite logits is reported as that, not as crowded experts", "[experts]") {
  // Every token then chooses the first rank's expert.
  core::job::JobSpec job = crowded_job(1.5);
  job.parallel.zero = 0;
  test::on_every_rank(job, [&](std::int64_t, core::rank::DeviceRank& cpu) {
    core::train::Trainer& trainer = cpu.trainer();
    core::model::ParamStore& params = trainer.params();
    for (core::model::ParamId id = 0; id < params.count(); ++id)
      if (params.info(id).name == "layers.0.mlp_norm.weight")
        params.master(id).as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    trainer.publish();
    const core::train::StepReport report = test::step_on(trainer, job, 1);
    CHECK(report.skipped);
    CHECK_FALSE(report.crowded_rank.has_value());
    CHECK((report.nonfinite_rank == cpu.groups().rank()) != report.nonfinite.empty());
  });
}
