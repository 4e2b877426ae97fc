// dp: auto of a run with checkpoints is the dp of the checkpoint that it resumes from, in any storage.

#include "core/run/agent/trained_dp.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "kernels/base/error.h"
#include "tests/io/checkpoint_support.h"
#include "tests/io/temp_dir.h"

using namespace trainerd;

namespace {

struct TrainedDpSetup {
  test::TempDir dir;
  core::job::JobSpec job;
  TrainedDpSetup() { job.output = dir / "run"; }

  /// The checkpoint's folder.
  std::string save(const std::string& where, std::int64_t step, std::int64_t dp) {
    io::CheckpointStore store(where, 9);
    const test::Shard shard = test::stamped_shard(step);
    const io::ShardContent content = shard.content();
    io::TrainingState state = test::state_at(step);
    state.environment["layout"] = "tp1 cp1 ep1 dp" + std::to_string(dp) + " pp1";
    return store.write(state, std::span(&content, 1)).path;
  }
  std::string own() const { return dir / "run/checkpoints"; }
  std::optional<std::int64_t> dp() const { return core::run::trained_dp(job, {}); }
};

}  // namespace

TEST_CASE("the checkpoint's dp is kept, of a file:// output too", "[trained-dp]") {
  TrainedDpSetup s;
  CHECK_FALSE(s.dp());
  s.save(s.own(), 10, 2);
  CHECK(s.dp() == 2);
  s.job.output = "file://" + s.job.output;
  CHECK(s.dp() == 2);
}

TEST_CASE("the checkpoint's dp is that of the one which the run chooses", "[trained-dp]") {
  TrainedDpSetup s;
  s.save(s.own(), 10, 2);
  const std::string newest = s.save(s.own(), 20, 3);
  CHECK(s.dp() == 3);
  SECTION("a damaged manifest") { std::filesystem::resize_file(newest + "/manifest.json", 9); }
  SECTION("a damaged shard") { std::filesystem::resize_file(newest + "/shard-00000.safetensors", 9); }
  CHECK(s.dp() == 2);
}

TEST_CASE("the checkpoint's dp is found in the durable tier", "[trained-dp]") {
  TrainedDpSetup s;
  s.job.checkpoint.durable.to = s.dir / "tier";
  CHECK_FALSE(s.dp());
  s.save(s.dir / "tier", 10, 4);
  CHECK(s.dp() == 4);
  s.save(s.own(), 20, 2);
  CHECK(s.dp() == 2);
}

TEST_CASE("checkpoints that cannot be looked at are not taken for none", "[trained-dp]") {
  TrainedDpSetup s;
  std::filesystem::create_directories(s.dir / "run");
  std::filesystem::create_symlink("checkpoints", s.own());  // ELOOP
  CHECK_THROWS_AS(s.dp(), base::CheckpointError);
}
