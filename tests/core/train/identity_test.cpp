// What a checkpoint and the resuming job must agree on.

#include <catch2/catch.hpp>
#include <cmath>

#include "core/train/snapshot.h"
#include "tests/core/train_support.h"

using namespace trainerd;

TEST_CASE("a checkpoint is refused for every difference of the model that changes the computation",
          "[identity]") {
  const core::job::JobSpec job = test::small_job();
  const auto saved = core::train::checkpoint_identity(job);
  CHECK_NOTHROW(core::train::require_same_identity("p", saved, job));
  const auto refused = [&](auto change) {
    core::job::JobSpec other = job;
    change(other);
    try {
      core::train::require_same_identity("p", saved, other);
    } catch (const base::CheckpointError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  // The smallest change of a double counts.
  CHECK_THAT(
      refused([](core::job::JobSpec& j) { j.model.rope_theta = std::nextafter(j.model.rope_theta, 1e9); }),
      Catch::Contains("model.rope_theta"));
  CHECK_THAT(refused([](core::job::JobSpec& j) { j.model.norm_eps = std::nextafter(j.model.norm_eps, 1.0); }),
             Catch::Contains("model.norm_eps"));
  CHECK_THAT(refused([](core::job::JobSpec& j) { j.model.ffn += 16; }), Catch::Contains("model.ffn"));
  CHECK_THAT(refused([](core::job::JobSpec& j) { j.seed += 1; }), Catch::Contains("seed"));
  CHECK(refused([](core::job::JobSpec& j) { j.steps *= 2; }).empty());
  CHECK(refused([](core::job::JobSpec& j) { j.optimizer.lr *= 2; }).empty());
}

TEST_CASE("an option that only one side has is named, and windows of the whole sequence count as none",
          "[identity]") {
  core::job::JobSpec plain = test::small_job(), windows = plain;
  windows.model.attention = {.window = plain.model.seq_len - 1, .pattern = {"sliding", "full"}};
  const auto refused = [](const core::job::JobSpec& saved, const core::job::JobSpec& now) {
    try {
      core::train::require_same_identity("p", core::train::checkpoint_identity(saved), now);
    } catch (const base::CheckpointError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK_THAT(refused(plain, windows),
             Catch::Contains("model.attention.window: the checkpoint has absent, the job 23"));
  CHECK_THAT(refused(windows, plain),
             Catch::Contains("model.attention.pattern: the checkpoint has sliding full, the job absent"));
  // Checkpoints of versions that accepted windows for sequences that fit in them.
  windows.model.attention.window = plain.model.seq_len;
  CHECK(refused(plain, windows).empty());
}

TEST_CASE("changes of the environment are named", "[identity]") {
  const std::map<std::string, std::string> saved{{"isa", "avx512"}, {"threads", "2"}, {"layout", "tp1"}};
  CHECK(core::train::environment_differences(saved, saved).empty());
  CHECK(
      core::train::environment_differences(saved, {{"isa", "avx512"}, {"threads", "1"}, {"layout", "tp2"}}) ==
      "layout was tp1, is tp2; threads was 2, is 1");
}
