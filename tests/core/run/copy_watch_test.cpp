// Replicated state is compared between ranks by hashes, and the differing copy is reported.

#include "core/run/agent/copy_watch.h"

#include <catch2/catch.hpp>

#include "tests/core/train_support.h"

using namespace trainerd;
using core::run::CopiesHashed;
using core::run::CopyVerdict;
using core::run::CopyWatch;

namespace {

using Ranks = std::vector<std::int64_t>;

CopiesHashed hashed(std::int64_t rank, std::int64_t step, std::vector<std::uint64_t> hashes,
                    std::vector<std::string> names = {}) {
  return {.rank = rank, .step = step, .names = std::move(names), .hashes = std::move(hashes)};
}

}  // namespace

TEST_CASE("of three copies the differing one is named, once all ranks have reported", "[copies]") {
  CopyWatch watch(3);
  for (std::int64_t rank = 0; rank < 3; ++rank) CHECK_FALSE(watch.add(hashed(rank, 4, {1, 2}, {"a", "b"})));
  CHECK(watch.equal() == 1);
  // Ranks report in any order, and one may be a state ahead.
  CHECK_FALSE(watch.add(hashed(2, 8, {1, 7})));
  CHECK_FALSE(watch.add(hashed(0, 8, {1, 2})));
  CHECK_FALSE(watch.add(hashed(0, 12, {1, 2})));
  const auto verdict = watch.add(hashed(1, 8, {1, 2}));
  REQUIRE(verdict);
  CHECK(verdict->ranks == Ranks{2});
  CHECK(watch.equal_step() == 4);
  CHECK(verdict->decided);
  CHECK(verdict->details == std::vector<std::string>{"b: rank 2 against ranks 0, 1"});
  CHECK(core::run::to_text(*verdict) ==
        "silent corruption in the state after step 8: rank 2 differs from its replicas");
}

TEST_CASE("of two copies either may be wrong, and both are named", "[copies]") {
  CopyWatch watch(2);
  CHECK_FALSE(watch.add(hashed(0, 1, {1}, {"a"})));
  const auto verdict = watch.add(hashed(1, 1, {2}, {"a"}));
  REQUIRE(verdict);
  CHECK(verdict->ranks == Ranks{0, 1});
  CHECK_FALSE(verdict->decided);
  CHECK(core::run::to_text(*verdict) ==
        "silent corruption in the state after step 1: ranks 0, 1 differ, and there is no majority that tells "
        "which is right");
}

TEST_CASE("copies are those of one name, whatever else the ranks hold", "[copies]") {
  CopyWatch watch(4);
  CHECK_FALSE(watch.add(hashed(0, 1, {1, 9}, {"norm", "left"})));
  CHECK_FALSE(watch.add(hashed(1, 1, {8, 1}, {"right", "norm"})));
  CHECK_FALSE(watch.add(hashed(2, 1, {})));  // holds no replicated state
  CHECK_FALSE(watch.add(hashed(3, 1, {1}, {"norm"})));
  CHECK(watch.equal() == 1);
  std::vector<std::uint64_t> many(20, 1);
  std::vector<std::string> names;
  for (int i = 0; i < 20; ++i) names.push_back("t" + std::to_string(i));
  CopyWatch wide(3);
  wide.add(hashed(0, 1, many, names));
  wide.add(hashed(1, 1, many, names));
  const auto verdict = wide.add(hashed(2, 1, std::vector<std::uint64_t>(20, 2), names));
  REQUIRE(verdict);
  CHECK(verdict->details.size() == 9);
  CHECK(verdict->details.back() == "and 12 more");
}

namespace trainerd::test {

namespace {

/// Hashes of every rank of a job after each of some steps. Rank 1's state changes before step `flip_before`.
CopyWatch watched(const core::job::JobSpec& job, std::optional<CopyVerdict>& verdict,
                  std::int64_t flip_before = 0) {
  const auto ranks = static_cast<std::int64_t>(ranks_of(job));
  CopyWatch watch(ranks);
  std::mutex mutex;
  on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& device) {
    core::train::Trainer& trainer = device.trainer();
    for (std::int64_t step = 1; step <= 24; ++step) {
      if (step == flip_before && rank == 1) {
        const core::model::ParamView& view = trainer.params().view(0);
        view.state_parts()[0].master.as<float>()[view.state_runs()[0].begin] *= 1.5f;
      }
      trainer.hash_copies(true);
      const std::vector<std::uint64_t> hashes = step_on(trainer, job, step).copy_hashes;
      const std::lock_guard lock(mutex);
      auto found = watch.add({.rank = rank,
                              .step = step - 1,
                              .names = step == 1 && trainer.copies() != nullptr ? trainer.copies()->names()
                                                                                : std::vector<std::string>{},
                              .hashes = hashes});
      if (found && !verdict) verdict = found;
    }
    require_as_planned(device);
  });
  return watch;
}

core::job::JobSpec hashing_job(const std::vector<std::string>& keys) {
  core::job::JobSpec job = small_job();
  for (const std::string& key : keys) {
    if (key == "tp") job.parallel.tp = 2;
    if (key == "dp") job.parallel.dp = 2;
    if (key == "dp3") job.parallel.dp = 3, job.batch.global = 6, job.batch.micro = 1;
    if (key == "dp4") job.parallel.dp = 4, job.batch.micro = 1;
    if (key == "pp") job.parallel.pp = 2;
    if (key.starts_with("zero")) job.parallel.zero = key[4] - '0';
    if (key == "hybrid") job.parallel.zero_group = 2;
    if (key == "tied") job.model.tie_embeddings = true;
    if (key == "sequence") job.parallel.sequence_parallel = true;
    if (key == "bf16") job.precision = small_job("bf16").precision;
  }
  job.steps = 24;
  job.supervise.hash_every = 1;
  return job;
}

}  // namespace

TEST_CASE("replicated state stays equal on every layout", "[copies][layouts]") {
  for (const auto& keys : std::vector<std::vector<std::string>>{{"tp"},
                                                                {"dp", "zero0"},
                                                                {"dp", "zero0", "bf16"},
                                                                {"dp", "zero1"},
                                                                {"dp", "zero2", "bf16"},
                                                                {"dp", "zero3"},
                                                                {"pp", "tied"},
                                                                {"tp", "dp", "zero0", "tied"},
                                                                {"tp", "dp", "zero1", "sequence"},
                                                                {"dp4", "zero2", "hybrid"},
                                                                {"dp4", "zero3", "hybrid", "bf16"},
                                                                {"tp", "pp", "tied", "bf16"}}) {
    std::string name;
    for (const std::string& key : keys) name += key + " ";
    CAPTURE(name);
    std::optional<CopyVerdict> verdict;
    const CopyWatch watch = watched(hashing_job(keys), verdict);
    CHECK(watch.equal() == 24);
    if (verdict) FAIL_CHECK(core::run::to_text(*verdict) + ": " + verdict->details.at(0));
  }
}

TEST_CASE("a changed weight of one replica is found at the next check", "[copies][layouts]") {
  std::optional<CopyVerdict> three, two;
  watched(hashing_job({"dp3", "zero0"}), three, 9);
  REQUIRE(three);
  CHECK((three->step == 8 && three->decided && three->ranks == Ranks{1}));
  watched(hashing_job({"dp", "zero0"}), two, 9);
  REQUIRE(two);
  CHECK((two->step == 8 && !two->decided && two->ranks == Ranks{0, 1}));
}

}  // namespace trainerd::test
