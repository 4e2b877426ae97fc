// The choice of checkpoints for the durable tier, and the thread that copies them.

#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "core/run/agent/durable_copier.h"
#include "core/run/agent/durable_tier.h"
#include "io/checkpoint/files.h"
#include "kernels/base/clock.h"
#include "tests/io/checkpoint_support.h"
#include "tests/io/temp_dir.h"

namespace base = trainerd::base;
namespace io = trainerd::io;
namespace test = trainerd::test;
using trainerd::core::run::DurableCopier;
using trainerd::core::run::DurableTier;
using CopyOutcome = DurableCopier::Outcome;

namespace {

DurableCopier::Result result_of(DurableCopier& copier) {
  for (;;) {
    if (auto result = copier.take()) return *std::move(result);
    ::usleep(1000);
  }
}

struct Setup {
  test::TempDir dir;
  io::CheckpointStore source{dir / "run", 9};
  std::string save(std::int64_t step) {
    const test::Shard shard = test::stamped_shard(step);
    const io::ShardContent content = shard.content();
    return source.write(test::state_at(step), std::span(&content, 1)).name();
  }
  DurableCopier::Options options(const std::string& to) {
    return {.open = [path = dir / to] { return io::CheckpointStore(io::open_storage(path), {.keep = 1}); },
            .first_seconds = 1e-3,
            .most_seconds = 1e-2};
  }
};

/// A storage whose copies block until it is released.
class Hanging final : public io::Storage {
 public:
  Hanging(std::shared_ptr<io::Storage> whole, std::shared_ptr<std::atomic<bool>> hangs)
      : whole_(std::move(whole)), hangs_(std::move(hangs)) {}
  std::string path_of(const std::string& name) const override { return whole_->path_of(name); }
  void make_folder(const std::string& name) override { whole_->make_folder(name); }
  std::vector<std::string> list(const std::string& name) const override { return whole_->list(name); }
  bool exists(const std::string& name) const override { return whole_->exists(name); }
  void write(const std::string& name, std::span<const std::byte> bytes, const io::Wanted& = {}) override {
    whole_->write(name, bytes);
  }
  std::int64_t copy(const std::string& name, const io::StoredFile& from, const io::Pace& pace) override {
    while (*hangs_) ::usleep(1000);
    return whole_->copy(name, from, pace);
  }
  std::unique_ptr<io::StoredFile> open(const std::string& name) const override { return whole_->open(name); }
  void remove(const std::string& name) override { whole_->remove(name); }
  void sync_folder(const std::string& name) override { whole_->sync_folder(name); }

 private:
  std::shared_ptr<io::Storage> whole_;
  std::shared_ptr<std::atomic<bool>> hangs_;
};

}  // namespace

TEST_CASE("a checkpoint is due for the durable tier by steps or by time", "[durable]") {
  const auto copy = [](DurableTier& tier, std::int64_t step, double now) {
    tier.add({.step = step, .folder = std::to_string(step)});
    REQUIRE(tier.begin(now));
    tier.end();
  };
  DurableTier every({.to = "x"});
  copy(every, 5, 0);
  CHECK(every.is_due(6, 0));
  DurableTier steps({.to = "x", .every = {.steps = 100}});
  CHECK(steps.is_due(7, 0));
  copy(steps, 7, 0);
  CHECK_FALSE(steps.is_due(99, 1e9));
  CHECK(steps.is_due(103, 0));
  copy(steps, 103, 0);
  CHECK_FALSE(steps.is_due(199, 0));
  CHECK(steps.is_due(50, 0));  // after a rollback
  DurableTier time({.to = "x", .every = {.seconds = 60}});
  copy(time, 7, 1000);
  CHECK_FALSE(time.is_due(99, 1059));
  CHECK(time.is_due(99, 1060));
}

TEST_CASE("one copy runs at a time, and a newer one replaces a waiting or failing one", "[durable]") {
  DurableTier tier({.to = "x"});
  CHECK_FALSE(tier.add({.step = 1, .folder = "a"}));
  REQUIRE(tier.begin(0));
  CHECK_FALSE(tier.add({.step = 2, .folder = "b"}));
  CHECK(tier.add({.step = 3, .folder = "c"}) == "b");
  CHECK_FALSE(tier.begin(0));
  CHECK(tier.copies("a"));
  CHECK_FALSE(tier.is_superseded());
  tier.copying()->failing_since = 5;
  CHECK(tier.is_superseded());
  tier.end();
  CHECK(tier.begin(0)->folder == "c");
  tier.end();
  CHECK(tier.idle());
}

TEST_CASE("shards and marker are copied, and tried again until the tier takes them", "[durable]") {
  Setup s;
  const std::string folder = s.save(10);
  test::write_file(s.dir / "tier", "in the way");
  DurableCopier copier(s.source, s.options("tier"));
  copier.enqueue({.step = 10, .folder = folder, .target = folder, .ranks = 1});
  for (int failures = 1; failures <= 3; ++failures) {
    const auto failed = result_of(copier);
    REQUIRE(failed.outcome == CopyOutcome::failed);
    CHECK(failed.failures == failures);
    CHECK(failed.problem.find(s.dir / "tier") != std::string::npos);
  }
  std::filesystem::remove(s.dir / "tier");
  auto copied = result_of(copier);
  while (copied.outcome == CopyOutcome::failed) copied = result_of(copier);
  REQUIRE(copied.outcome == CopyOutcome::copied);
  CHECK(copied.bytes > 0);
  CHECK(io::list_checkpoints(s.dir / "tier").empty());
  copier.enqueue({.part = DurableCopier::Part::completion, .step = 10, .folder = folder, .target = folder});
  CHECK(result_of(copier).path == s.dir / "tier/step-00000010");
  CHECK(io::verify_checkpoint(s.dir / "tier/step-00000010").state.step == 10);
  // A checkpoint that the run has removed meanwhile is no failure.
  copier.enqueue({.step = 20, .folder = "step-00000020", .target = "step-00000020", .ranks = 1});
  CHECK(result_of(copier).outcome == CopyOutcome::gone);
}

TEST_CASE("a copy keeps its rate, and a dropped copy ends at once", "[durable]") {
  Setup s;
  const std::string folder = s.save(10);
  DurableCopier::Options options = s.options("tier");
  options.rate_bytes_per_second = 1;  // the first piece is copied at once, the next one after minutes
  DurableCopier copier(s.source, options);
  copier.enqueue({.step = 10, .folder = folder, .target = folder, .ranks = 1});
  CHECK(result_of(copier).outcome == CopyOutcome::copied);
  const double begin = base::monotonic_seconds();
  copier.enqueue({.step = 10, .folder = folder, .target = "step-00000010.2", .ranks = 1});
  copier.enqueue({.step = 10, .folder = "other", .target = "other", .ranks = 1});
  ::usleep(50'000);
  CHECK_FALSE(copier.take());
  copier.drop("other");
  CHECK(result_of(copier).folder == "other");
  copier.drop(folder);
  CHECK(result_of(copier).outcome == CopyOutcome::dropped);
  CHECK(base::monotonic_seconds() - begin < 30);
  CHECK(io::list_checkpoints(s.dir / "tier").empty());
}

TEST_CASE("a hanging copy is reported once and resumes when it can", "[durable]") {
  Setup s;
  const std::string folder = s.save(10);
  const auto hangs = std::make_shared<std::atomic<bool>>(true);
  DurableCopier::Options options = s.options("tier");
  options.open = [path = s.dir / "tier", hangs] {
    return io::CheckpointStore(std::make_shared<Hanging>(io::open_storage(path), hangs), {.keep = 1});
  };
  DurableCopier copier(s.source, options);
  CHECK_FALSE(copier.hung(0));
  copier.enqueue({.step = 10, .folder = folder, .target = folder, .ranks = 1});
  ::usleep(100'000);
  CHECK_FALSE(copier.hung(600));
  const auto hung = copier.hung(0.05);
  REQUIRE(hung);
  CHECK(hung->outcome == CopyOutcome::failed);
  CHECK(hung->folder == folder);
  CHECK(hung->problem.starts_with("nothing has come of it for "));
  CHECK(hung->problem.ends_with(": a call of the file system or store does not return"));
  CHECK_FALSE(copier.hung(0));
  CHECK_FALSE(copier.take());
  *hangs = false;
  CHECK(result_of(copier).outcome == CopyOutcome::copied);
}

TEST_CASE("after a dropped copy the next checkpoint is due", "[durable]") {
  io::DurableOptions options;
  options.to = "tier";
  options.every.steps = 100;
  core::run::DurableTier tier(options);
  tier.add({.step = 100, .folder = "a"});
  REQUIRE(tier.begin(1));
  CHECK_FALSE(tier.is_due(110, 2));
  tier.drop();
  CHECK(tier.is_due(110, 2));
  tier.add({.step = 110, .folder = "b"});
  REQUIRE(tier.begin(3));
  // One that waits takes its place.
  tier.add({.step = 200, .folder = "c"});
  tier.drop();
  CHECK_FALSE(tier.is_due(210, 4));
  REQUIRE(tier.begin(4));
  tier.end();
  CHECK_FALSE(tier.is_due(210, 5));
  CHECK(tier.is_due(300, 5));
}

TEST_CASE("the tag of a good checkpoint is copied, before its copy is complete or after", "[durable]") {
  Setup s;
  const auto is_good = [&](std::int64_t step) {
    for (const io::StoredCheckpoint& stored : io::list_checkpoints(s.dir / "tier"))
      if (stored.step == step) return stored.good;
    return false;
  };
  DurableCopier copier(s.source, s.options("tier"));
  const auto copy = [&](std::int64_t step) {
    const std::string folder = io::list_checkpoints(s.dir / "run").front().name();
    copier.enqueue({.step = step, .folder = folder, .target = folder, .ranks = 1});
    REQUIRE(result_of(copier).outcome == CopyOutcome::copied);
    copier.enqueue(
        {.part = DurableCopier::Part::completion, .step = step, .folder = folder, .target = folder});
    REQUIRE(result_of(copier).outcome == CopyOutcome::copied);
  };
  const auto tag = [&](std::int64_t step) {
    copier.enqueue({.part = DurableCopier::Part::tag, .step = step, .folder = "tag"});
    return result_of(copier);
  };
  s.save(10);
  copy(10);
  CHECK_FALSE(is_good(10));
  s.source.tag_good(10);
  CHECK(tag(10).problem.empty());
  CHECK(is_good(10));
  s.save(20);
  CHECK(tag(20).problem.empty());  // step 20 is not in the tier
  copy(20);
  CHECK_FALSE(is_good(20));
  CHECK(is_good(10));  // the good one stays, despite keep: 1
  s.save(30);
  s.source.tag_good(30);
  copy(30);
  CHECK(is_good(30));
  // The step was repeated: the tier holds a different checkpoint.
  s.save(40);
  copy(40);
  const test::Shard other = test::stamped_shard(41);
  const io::ShardContent content = other.content();
  s.source.write(test::state_at(40), std::span(&content, 1));
  s.source.tag_good(40);
  CHECK(tag(40).problem.empty());
  CHECK_FALSE(is_good(40));
  // A failing tier is not retried.
  std::filesystem::remove_all(s.dir / "tier");
  test::write_file(s.dir / "tier", "in the way");
  CHECK(tag(30).problem.find(s.dir / "tier") != std::string::npos);
}
