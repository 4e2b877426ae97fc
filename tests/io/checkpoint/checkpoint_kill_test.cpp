#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <random>
#include <thread>

#include "kernels/base/clock.h"
#include "tests/io/checkpoint_support.h"
#include "tests/io/temp_dir.h"

using namespace trainerd::io;
using namespace trainerd::test;

namespace {

constexpr std::int64_t kRows = 2000;

void write_step(const std::string& directory, std::int64_t step) {
  const Shard shard = stamped_shard(step, kRows);
  const ShardContent content = shard.content();
  CheckpointStore(directory, 2).write(state_at(step), std::span(&content, 1));
}

// Writes checkpoints one after the other. It resumes from the newest valid one and first rewrites that step,
// as a run does that is stopped directly after its resume.
[[noreturn]] void write_until_killed(const std::string& directory) {
  try {
    const auto found = CheckpointStore(directory, 2).newest_valid({});
    for (std::int64_t step = found ? found->where.step : 1;; ++step) write_step(directory, step);
  } catch (const std::exception&) {
    _exit(9);
  }
}

}  // namespace

TEST_CASE("a kill at any moment leaves a whole newest checkpoint") {
  const TempDir dir;
  // The time of a few checkpoints on this disk, so that kills fall before, into and between them.
  const double before = trainerd::base::monotonic_seconds();
  write_step(dir / "probe", 1);
  const double one_seconds = trainerd::base::monotonic_seconds() - before;
  std::mt19937 random(20240607);
  std::uniform_real_distribution<double> moment(0, 4 * one_seconds);
  std::int64_t newest = 0;
  // More and longer rounds if the machine is so slow that hardly any checkpoint was completed.
  for (int round = 0; round < 30 || (newest < 4 && round < 200); ++round) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) write_until_killed(dir / "run");
    const double patience = round < 30 ? 1.0 : static_cast<double>(round - 28);
    std::this_thread::sleep_for(std::chrono::duration<double>(patience * moment(random)));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));  // it was still writing and had no error
    const CheckpointStore store(dir / "run", 2);
    int rejected = 0;
    const auto found =
        store.newest_valid([&rejected](const std::string&, const std::string&) { ++rejected; });
    CHECK(rejected == 0);  // nothing incomplete was taken for complete
    if (!found) {
      CHECK(newest == 0);
      continue;
    }
    CHECK(found->where.step >= newest);
    newest = found->where.step;
    CHECK(found->manifest.state.cursor == newest * 16);
    std::vector<float> values(static_cast<std::size_t>(kRows) * 8);
    CheckpointReader(found->where.path)
        .read(slice("w", {kRows, 8}, {0, 0}, {kRows, 8}), std::as_writable_bytes(std::span(values)));
    CHECK(values == std::vector<float>(values.size(), static_cast<float>(newest)));
  }
  CHECK(newest >= 4);
}
