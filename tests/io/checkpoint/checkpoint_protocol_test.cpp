// Wherever the process ends, the order of writes and removals must leave a complete checkpoint. Each storage
// operation is the last one in one of the cases.

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/storage/file_errors.h"
#include "io/storage/storage.h"
#include "tests/io/checkpoint_support.h"
#include "tests/io/mortal_storage.h"
#include "tests/io/temp_dir.h"

using namespace trainerd::io;
using namespace trainerd::test;

namespace {

/// The saves of a run: several steps, some of them again as after a rollback, one with shards from two nodes.
/// `completed` gets the value of each step's newest checkpoint that was reported complete.
void save_all(const std::shared_ptr<Storage>& storage, std::map<std::int64_t, float>& completed) {
  CheckpointStore store(storage, {.keep = 2});
  float value = 0;
  for (const std::int64_t step : {5, 10, 15, 10, 15, 20, 20}) {
    const Shard shard = stamped_shard(static_cast<std::int64_t>(++value));
    const ShardContent content = shard.content();
    if (step == 20) {
      const std::int64_t attempt = store.next_attempt(step);
      store.complete(state_at(step), attempt, store.write_shards(step, attempt, 0, std::span(&content, 1)));
    } else {
      store.write(state_at(step), std::span(&content, 1));
    }
    completed[step] = value;
  }
}

float last_element_of(const std::string& path) {
  CheckpointReader reader(path);
  float value = 0;
  reader.read(slice("w", {6, 8}, {5, 7}, {1, 1}), std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

/// Every kept checkpoint that was reported complete must read back, or a newer one of its step.
void check_all(const CheckpointStore& store, const std::map<std::int64_t, float>& completed) {
  int rejected = 0;
  const auto found = store.newest_valid([&](const std::string&, const std::string&) { ++rejected; });
  CHECK(rejected == 0);  // a checkpoint with a marker is valid
  CHECK(found.has_value() >= !completed.empty());
  for (const StoredCheckpoint& where : store.list_attempts()) CHECK_NOTHROW(verify_checkpoint(where.path));
  std::map<std::int64_t, float> there;
  for (const StoredCheckpoint& where : store.list()) there[where.step] = last_element_of(where.path);
  int newest = 0;
  for (auto step = completed.rbegin(); step != completed.rend() && newest < 2; ++step, ++newest) {
    INFO("step " << step->first);
    REQUIRE(there.contains(step->first));
    CHECK(there[step->first] >= step->second);
  }
}

}  // namespace

TEST_CASE("a kill at any operation leaves every checkpoint that was complete whole, and its leftovers go",
          "[protocol]") {
  int operations = 0;
  for (bool finished = false; !finished; ++operations) {
    INFO("killed at operation " << operations);
    const TempDir dir;
    const std::shared_ptr<Storage> disk = open_storage(dir / "run");
    disk->make_folder("");
    std::map<std::int64_t, float> completed;
    const auto mortal = std::make_shared<Mortal>(disk, operations + 1);
    try {
      save_all(mortal, completed);
      finished = true;
    } catch (const StorageError&) {
      CHECK(mortal->dead());
    }
    CheckpointStore store(disk, {.keep = 2});
    check_all(store, completed);
    // The next process finds no leftovers of this one.
    CHECK(store.collect_partial().empty());
    check_all(store, completed);
    const Shard shard = stamped_shard(100);
    const ShardContent content = shard.content();
    for (const std::int64_t step : {25, 30}) store.write(state_at(step), std::span(&content, 1));
    CHECK(disk->list("") == std::vector<std::string>{"step-00000025", "step-00000030"});
  }
  CHECK(operations > 80);
}

TEST_CASE("a copy that is killed at any operation is completed by the next one, and earlier copies stay",
          "[protocol]") {
  const TempDir dir;
  CheckpointStore source(dir / "source", 9);
  const auto copy = [&](const CheckpointStore& to, std::int64_t step) {
    const auto from = source.folder("step-000000" + std::to_string(step));
    to.copy_shard("step-000000" + std::to_string(step), "shard-00000.safetensors",
                  *from->open("shard-00000.safetensors"), {});
    to.complete_copy("step-000000" + std::to_string(step), read_text(*from, "manifest.json"));
  };
  for (const std::int64_t step : {10, 20, 30}) {
    const Shard shard = stamped_shard(step);
    const ShardContent content = shard.content();
    source.write(state_at(step), std::span(&content, 1));
  }
  bool finished = false;
  for (int operations = 0; !finished; ++operations) {
    INFO("killed at operation " << operations);
    const std::shared_ptr<Storage> disk = open_storage(dir / std::to_string(operations));
    disk->make_folder("");
    std::int64_t completed = 0;
    try {
      const CheckpointStore store(std::make_shared<Mortal>(disk, operations + 1), {.keep = 2});
      for (const std::int64_t step : {10, 20, 30}) {
        copy(store, step);
        completed = step;
      }
      finished = true;
    } catch (const StorageError&) {}
    const CheckpointStore store(disk, {.keep = 2});
    const auto found = store.newest_valid({});
    CHECK(found.has_value() >= (completed > 0));
    if (found) CHECK(found->where.step >= completed);
    if (found) CHECK(last_element_of(found->where.path) == static_cast<float>(found->where.step));
    copy(store, 30);
    CHECK(last_element_of(store.list().front().path) == 30.0f);
  }
}
