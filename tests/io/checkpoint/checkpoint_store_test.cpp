#include <sys/resource.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <map>
#include <set>

#include "io/checkpoint/folders.h"
#include "io/hash/hash.h"
#include "io/storage/file_errors.h"
#include "io/storage/local_storage.h"
#include "io/storage/storage.h"
#include "kernels/base/error.h"
#include "tests/io/checkpoint_support.h"
#include "tests/io/temp_dir.h"

using trainerd::base::CheckpointError;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

StoredCheckpoint write_step(CheckpointStore& store, std::int64_t step) {
  const Shard shard = stamped_shard(step);
  const ShardContent content = shard.content();
  return store.write(state_at(step), std::span(&content, 1));
}

std::vector<std::int64_t> steps_of(const CheckpointStore& store) {
  std::vector<std::int64_t> steps;
  for (const StoredCheckpoint& c : store.list()) steps.push_back(c.step);
  return steps;
}

float first_value(const std::string& path, const std::string& name, std::vector<std::int64_t> logical) {
  CheckpointReader reader(path);
  std::vector<std::int64_t> zeros(logical.size()), ones(logical.size(), 1);
  float value = 0;
  reader.read(slice(name, std::move(logical), zeros, ones), std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

std::set<std::string> entries(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& e : std::filesystem::directory_iterator(directory))
    names.insert(e.path().filename().string());
  return names;
}

void flip_byte(const std::string& path, std::size_t at) {
  std::string content = read_file(path);
  content.at(at) = static_cast<char>(content.at(at) ^ 0x10);
  write_file(path, content);
}

using Steps = std::vector<std::int64_t>;
using Rejected = std::vector<std::pair<std::string, std::string>>;

}  // namespace

TEST_CASE("the checksum of a tensor is XXH3-64") {
  // Published test vector of empty input.
  CHECK(xxh3_64({}) == 0x2d06800538d394c2);
  const std::string abc = "abc";
  Xxh3Of64 pieces;
  pieces.update(std::as_bytes(std::span(abc)).first(1));
  pieces.update(std::as_bytes(std::span(abc)).subspan(1));
  CHECK(pieces.value() == xxh3_64(std::as_bytes(std::span(abc))));
}

TEST_CASE("the checksum is XXH3-128") {
  // Published test vectors of empty input and of "abc", in the canonical order.
  CHECK(xxh3_hex({}) == "99aa06d3014798d86001c324468d497f");
  const std::string abc = "abc";
  CHECK(xxh3_hex(std::as_bytes(std::span(abc))) == "06b05ab6733a618578af5f94892f3950");
  Xxh3 pieces;
  pieces.update(std::as_bytes(std::span(abc)).first(1));
  pieces.update(std::as_bytes(std::span(abc)).subspan(1));
  CHECK(pieces.hex() == "06b05ab6733a618578af5f94892f3950");
}

namespace {

/// A disk that stores a file with one bit flipped.
class Flipping final : public LocalStorage {
 public:
  using LocalStorage::LocalStorage;
  void write(const std::string& name, std::span<const std::byte> bytes, const Wanted& = {}) override {
    std::vector<std::byte> kept(bytes.begin(), bytes.end());
    if (flips && name.ends_with(".safetensors")) kept.back() ^= std::byte{4};
    LocalStorage::write(name, kept);
  }
  bool flips = true;
};

/// A disk whose files end too early for `short_reads` reads.
class Short final : public LocalStorage {
 public:
  using LocalStorage::LocalStorage;
  std::unique_ptr<StoredFile> open(const std::string& name) const override {
    auto file = LocalStorage::open(name);
    if (name.ends_with(".safetensors") && short_reads > 0) {
      --short_reads;
      std::filesystem::resize_file(path_of(name), static_cast<std::uintmax_t>(file->bytes() / 2));
    }
    return file;
  }
  mutable int short_reads = 1;
};

}  // namespace

TEST_CASE("a short read of what was written is the disk's error, which another try may mend") {
  const TempDir dir;
  const auto disk = std::make_shared<Short>(dir / "checkpoints");
  CheckpointStore careful(disk, {}, true);
  try {
    write_step(careful, 10);
    FAIL("nothing was found");
  } catch (const StorageError& error) {
    CHECK(error.error_number == EIO);
    CHECK_THAT(error.what(), Catch::Contains("bytes too early, at "));
  }
  CHECK(careful.list().empty());
  CHECK(write_step(careful, 10).step == 10);
  // A complete checkpoint does not count as damaged because of it either.
  disk->short_reads = 1;
  CHECK_THROWS_AS(careful.newest_valid({}), CheckpointError);
}

TEST_CASE("a shard that the disk keeps otherwise than it was written is found by reading it back") {
  const TempDir dir;
  const auto disk = std::make_shared<Flipping>(dir / "checkpoints");
  CheckpointStore careful(disk, {}, true);
  try {
    write_step(careful, 10);
    FAIL("nothing was found");
  } catch (const StorageError& error) {  // a retry may succeed
    CHECK_THAT(error.what(),
               Catch::Contains("step-00000010/shard-00000.safetensors: what is read back is not "
                               "what was written: its checksum is "));
  }
  CHECK(careful.list().empty());
  CHECK(disk->list("").empty());
  disk->flips = false;
  CHECK(write_step(careful, 10).step == 10);
  CHECK(careful.newest_valid({}));
  // Without read-back the damage is found too late.
  disk->flips = true;
  CheckpointStore trusting(disk, {});
  write_step(trusting, 20);
  std::vector<std::string> rejected;
  trusting.newest_valid([&](const std::string& path, const std::string&) { rejected.push_back(path); });
  CHECK(rejected == std::vector{dir / "checkpoints/step-00000020"});
}

TEST_CASE("a written checkpoint is listed, whole and reads back") {
  const TempDir dir;
  CheckpointStore store(dir / "checkpoints", 3);
  CHECK(store.list().empty());
  CHECK_FALSE(store.newest_valid({}).has_value());
  const StoredCheckpoint written = write_step(store, 10);
  CHECK(written.path == dir / "checkpoints/step-00000010");
  CHECK(entries(dir / "checkpoints") == std::set<std::string>{"step-00000010"});
  CHECK(entries(written.path) ==
        std::set<std::string>{"COMPLETE", "manifest.json", "shard-00000.safetensors"});
  const auto found = store.newest_valid({});
  REQUIRE(found.has_value());
  CHECK(found->where.step == 10);
  CHECK(found->manifest.state.cursor == 160);
  CHECK(first_value(found->where.path, "w", {6, 8}) == 10.0f);
}

TEST_CASE("the newest `keep` checkpoints stay") {
  const TempDir dir;
  CheckpointStore store(dir.path(), 2);
  for (const std::int64_t step : {5, 10, 15, 20}) write_step(store, step);
  CHECK(steps_of(store) == Steps{20, 15});
  CHECK(entries(dir.path()).size() == 2);
}

TEST_CASE("a checkpoint of the same step is replaced") {
  const TempDir dir;
  CheckpointStore store(dir.path(), 2);
  write_step(store, 5);
  const Shard other = stamped_shard(77);
  const ShardContent content = other.content();
  const StoredCheckpoint again = store.write(state_at(5), std::span(&content, 1));
  CHECK(entries(dir.path()) == std::set<std::string>{"step-00000005.2"});
  CHECK(first_value(again.path, "w", {6, 8}) == 77.0f);
  CHECK(write_step(store, 5).path == dir / "step-00000005.3");
  CHECK(steps_of(store) == Steps{5});
}

TEST_CASE(
    "of two complete checkpoints of one step the newer attempt counts, and the older one where it is "
    "damaged") {
  const TempDir dir;
  CheckpointStore store(dir.path(), 3);
  write_step(store, 5);
  std::filesystem::copy(dir / "step-00000005", dir / "kept");
  write_step(store, 5);
  write_step(store, 5);
  std::filesystem::rename(dir / "kept", dir / "step-00000005");
  CHECK(steps_of(store) == Steps{5});
  CHECK(store.newest_valid({})->where.path == dir / "step-00000005.3");
  CHECK(store.next_attempt(5) == 4);
  CHECK(store.next_attempt(6) == 1);
  flip_byte(dir / "step-00000005.3/shard-00000.safetensors", 200);
  CHECK(store.newest_valid({})->where.path == dir / "step-00000005");
}

TEST_CASE("folders have the names that versions without attempts read or ignore") {
  CHECK(folder_name(10) == "step-00000010");
  CHECK(folder_name(10, 2) == "step-00000010.2");
  CHECK(parse_folder("step-00000010.12")->attempt == 12);
  CHECK(parse_folder("step-00000010.12")->step == 10);
  CHECK(parse_folder("step-00000010.old")->attempt == 0);
  for (const char* other :
       {"step-", "step-x", "step-1.", "step-1.0", "step-1.1", "step-1.2.3", "step--1", "step-1.2x"})
    CHECK_FALSE(parse_folder(other));
}

TEST_CASE("a completion that failed at any of its steps is completed by another try") {
  for (const std::string obstacle : {"manifest.json/x", "COMPLETE/x", "marked", "half a marker"}) {
    INFO(obstacle);
    const TempDir dir;
    const CheckpointStore store(dir.path(), 2);
    const Shard shard = stamped_shard(10);
    const std::vector<ShardContent> contents = {shard.content()};
    const auto written = store.write_shards(10, 1, 0, contents);
    if (obstacle == "marked") {  // left by an attempt with unknown outcome, with another state
      store.complete(state_at(10), 1, written);
      write_file(dir / "step-00000010/manifest.json", "half");
    } else if (obstacle == "half a marker") {
      write_file(dir / "step-00000010/COMPLETE", "0123");
      CHECK(store.list().empty());
    } else {
      write_file(dir / "step-00000010/" + obstacle, "in the way");
    }
    if (obstacle == "marked") flip_byte(dir / "step-00000010/COMPLETE", 0);
    CHECK(verify_checkpoint(store.complete(state_at(10), 1, written).path).state.step == 10);
    CHECK(entries(dir / "step-00000010") ==
          std::set<std::string>{"COMPLETE", "manifest.json", "shard-00000.safetensors"});
    // Calling it again changes nothing.
    CHECK(store.complete(state_at(10), 1, written).path == dir / "step-00000010");
    CHECK(verify_checkpoint(dir / "step-00000010").state.step == 10);
    CHECK_THROWS_AS(store.write_shards(10, 1, 0, contents), CheckpointError);
  }
}

TEST_CASE("what kills left unfinished is collected at the start, and nothing else") {
  const TempDir dir;
  const CheckpointStore store(dir.path(), 5);
  // Left by versions that used renames.
  write_file(dir / ".partial-step-00000009/shard-00000.safetensors", "half");
  write_file(dir / ".partial-removed-step-00000001/COMPLETE", "x");
  write_file(dir / ".partial-probe-1", "");
  // Without a manifest it was never complete. One that lost its marker may be the only one: it is kept.
  write_file(dir / "step-00000009.2/shard-00000.safetensors", "half");
  write_file(dir / "step-00000005/shard-00000.safetensors", "no marker");
  write_file(dir / "step-00000005/manifest.json", "{}");
  CHECK(store.collect_partial().empty());
  CHECK(entries(dir.path()) == std::set<std::string>{"step-00000005"});
  REQUIRE(store.incomplete().size() == 1);
  CHECK(store.incomplete().front().path == dir / "step-00000005");
}

TEST_CASE("a link in the place of a file to write is not followed") {
  const TempDir dir;
  write_file(dir / "mine", "precious");
  const CheckpointStore store(dir / "run", 2);
  const Shard shard = stamped_shard(10);
  const std::vector<ShardContent> contents = {shard.content()};
  // A link in place of a shard is replaced. A link in place of the folder is refused.
  std::filesystem::create_directories(dir / "run/step-00000010");
  std::filesystem::create_symlink(dir / "mine", dir / "run/step-00000010/shard-00000.safetensors");
  store.write_shards(10, 1, 0, contents);
  CHECK(read_file(dir / "mine") == "precious");
  std::filesystem::create_directories(dir / "elsewhere");
  std::filesystem::create_symlink(dir / "elsewhere", dir / "run/step-00000015");
  CHECK(message_of<CheckpointError>([&] { store.write_shards(15, 1, 0, contents); }).find("symbolic link") !=
        std::string::npos);
  CHECK(std::filesystem::is_empty(dir / "elsewhere"));
  // If the directory of checkpoints is a link, the user made it.
  std::filesystem::create_symlink(dir / "elsewhere", dir / "linked");
  CheckpointStore linked(dir / "linked", 2);
  write_step(linked, 5);
  CHECK(entries(dir / "elsewhere") == std::set<std::string>{"step-00000005"});
}

TEST_CASE("a FIFO or a directory in the place of a file is refused, not waited for") {
  for (const std::string file : {"manifest.json", "shard-00000.safetensors", "COMPLETE"}) {
    INFO(file);
    const TempDir dir;
    CheckpointStore store(dir.path(), 3);
    const std::string path = write_step(store, 10).path;
    std::filesystem::remove(path + "/" + file);
    REQUIRE(::mkfifo((path + "/" + file).c_str(), 0644) == 0);
    const std::string what = message_of<CheckpointError>([&] { verify_checkpoint(path); });
    CHECK(what.find(file) != std::string::npos);
    CHECK(what.find("not a regular file") != std::string::npos);
    std::filesystem::remove(path + "/" + file);
    std::filesystem::create_directories(path + "/" + file);
    CHECK(message_of<CheckpointError>([&] { verify_checkpoint(path); }).find("not a regular file") !=
          std::string::npos);
  }
}

TEST_CASE("what kills left is not listed and goes with the next write") {
  const TempDir dir;
  CheckpointStore store(dir.path(), 5);
  write_step(store, 5);
  write_file(dir / ".partial-step-00000009/shard-00000.safetensors", "half");
  std::filesystem::copy(dir / "step-00000005", dir / "step-00000008");
  std::filesystem::remove(dir / "step-00000008/COMPLETE");
  write_file(dir / "notes.txt", "mine");
  CHECK(steps_of(store) == Steps{5});
  write_step(store, 10);
  CHECK(entries(dir.path()) == std::set<std::string>{"step-00000005", "step-00000010", "notes.txt"});
}

TEST_CASE("nodes that share a directory write one checkpoint while the next is under way") {
  const TempDir dir;
  const CheckpointStore leader(dir.path(), 1), other(dir.path(), 1);
  write_file(dir / ".partial-step-00000010-run6/shard-00001.safetensors", "of a version that renamed");
  write_file(dir / "step-00000005/shard-00009.safetensors", "of a step that was given up");
  write_file(dir / "step-00000010/shard-00001.safetensors", "of a run that was killed");
  const auto shard_of = [](const std::string& name, float value) {
    return make_shard({slice(name, {4}, {0}, {4})},
                      [value](const std::string&, std::int64_t) { return value; });
  };
  const Shard a = shard_of("a", 1), b = shard_of("b", 2), c = shard_of("c", 3);
  const std::vector<ShardContent> mine = {a.content()}, theirs = {b.content(), c.content()};
  REQUIRE(leader.next_attempts() == std::map<std::int64_t, std::int64_t>{{5, 2}, {10, 2}});
  const auto first = leader.write_shards(10, 2, 0, mine);
  auto all = other.write_shards(10, 2, 1, theirs);
  other.write_shards(15, 1, 1, theirs);  // of the next checkpoint
  CHECK(leader.list().empty());
  all.insert(all.begin(), first.begin(), first.end());
  const StoredCheckpoint stored = leader.complete(state_at(10), 2, all);
  CHECK(verify_checkpoint(stored.path).shards.size() == 3);
  CHECK(verify_checkpoint(stored.path).shards[2].file == "shard-00002.safetensors");
  CHECK(first_value(stored.path, "a", {4}) == 1.0f);
  CHECK(first_value(stored.path, "c", {4}) == 3.0f);
  CHECK(entries(dir.path()) == std::set<std::string>{"step-00000010.2", "step-00000015"});
  // A checkpoint with a missing or different shard is not completed.
  leader.write_shards(15, 1, 0, mine);
  write_file(dir / "step-00000015/shard-00001.safetensors", "short");
  CHECK_THROWS_AS(leader.complete(state_at(15), 1, all), CheckpointError);
  CHECK(leader.list().size() == 1);
  // Its shards stay. Once all exist, a retry completes it.
  other.write_shards(15, 1, 1, theirs);
  CHECK(verify_checkpoint(leader.complete(state_at(15), 1, all).path).shards.size() == 3);
  CHECK(entries(dir.path()) == std::set<std::string>{"step-00000015"});
  other.write_shards(20, 1, 1, theirs);
  leader.discard(20, 1);
  leader.discard(15, 1);  // complete, so it is kept
  CHECK(entries(dir.path()) == std::set<std::string>{"step-00000015"});
}

TEST_CASE("what a version that renamed left behind is read") {
  const TempDir dir;
  CheckpointStore store(dir.path(), 1);
  write_step(store, 5);
  // Killed before the new folder got its marker.
  std::filesystem::rename(dir / "step-00000005", dir / "step-00000005.old");
  write_file(dir / "step-00000005/shard-00000.safetensors", "half");
  const auto found = store.newest_valid({});
  REQUIRE(found.has_value());
  CHECK(found->where.step == 5);
  write_step(store, 5);
  CHECK(entries(dir.path()) == std::set<std::string>{"step-00000005.2"});
  CHECK(store.newest_valid({}).has_value());
}

TEST_CASE("checkpoints of steps that are to be kept, and those that are read, stay") {
  const TempDir dir;
  CheckpointStore store(open_storage(dir.path()), {.keep = 1, .keep_every = 10});
  for (const std::int64_t step : {5, 10, 15}) write_step(store, step);
  CHECK(steps_of(store) == Steps{15, 10});
  store.pinned().pin("step-00000015");
  write_step(store, 25);
  CHECK(steps_of(store) == Steps{25, 15, 10});
  store.pinned().unpin("step-00000015");
  write_step(store, 30);
  CHECK(steps_of(store) == Steps{30, 25, 10});
}

TEST_CASE("damage of any file is named and the previous checkpoint is taken") {
  struct Damage {
    const char* file;
    std::size_t at;
  };
  for (const Damage damage : {Damage{"shard-00000.safetensors", 3}, Damage{"shard-00000.safetensors", 200},
                              Damage{"manifest.json", 40}, Damage{"COMPLETE", 0}}) {
    const TempDir dir;
    CheckpointStore store(dir.path(), 3);
    write_step(store, 5);
    write_step(store, 10);
    INFO(damage.file << " at " << damage.at);
    flip_byte(dir / "step-00000010/" + damage.file, damage.at);
    Rejected rejected;
    const auto found = store.newest_valid(
        [&](const std::string& path, const std::string& why) { rejected.emplace_back(path, why); });
    REQUIRE(found.has_value());
    CHECK(found->where.step == 5);
    REQUIRE(rejected.size() == 1);
    CHECK(rejected[0].first == dir / "step-00000010");
    CHECK(rejected[0].second.find(std::string(damage.file) == "COMPLETE" ? "manifest.json" : damage.file) !=
          std::string::npos);
  }
}

TEST_CASE("a damaged tensor is named, by verification and by a complete read") {
  const TempDir dir;
  CheckpointStore store(dir.path(), 3);
  const std::string path = write_step(store, 5).path;
  const std::string shard = path + "/shard-00000.safetensors";
  const std::string content = read_file(shard);
  const SafetensorsHeader header =
      parse_safetensors(std::as_bytes(std::span(content)), static_cast<std::int64_t>(content.size()));
  flip_byte(shard, static_cast<std::size_t>(header.data_offset + header.find("b")->begin + 9));
  CHECK_THROWS_WITH(verify_checkpoint(path), Catch::Contains("the damage is in b (checksum"));
  CheckpointReader reader(path);
  std::vector<float> b(5), w(48);
  reader.read(slice("w", {6, 8}, {0, 0}, {6, 8}), std::as_writable_bytes(std::span(w)));
  CHECK_THROWS_WITH(reader.read(slice("b", {5}, {0}, {5}), std::as_writable_bytes(std::span(b))),
                    Catch::Contains("shard-00000.safetensors: is damaged: the checksum of b is"));
}

TEST_CASE("a manifest without checksums of tensors is one of an older version, and is read") {
  const Shard shard = stamped_shard(5);
  const WrittenShard written{{"shard-00000.safetensors", 10, std::string(32, 'a')}, shard.slices};
  const std::string text = to_json(state_at(5), std::span(&written, 1));
  CHECK(text.find("\"xxh3\": \"aaaa") != std::string::npos);
  CHECK_FALSE(parse_manifest(text).slices.front().second.xxh3.has_value());
  WrittenShard now = written;
  now.slices[0].xxh3 = 0x0123456789abcdef;
  const std::string today = to_json(state_at(5), std::span(&now, 1));
  CHECK(parse_manifest(today).slices.front().second.xxh3 == 0x0123456789abcdef);
  std::string wrong = today;
  wrong.replace(wrong.find("0123456789abcdef"), 16, "0123456789abcdeg");
  CHECK_THROWS_WITH(parse_manifest(wrong), Catch::Contains("the checksum of w is not 16 hex digits"));
}

TEST_CASE("the newest checkpoint that is good is not removed") {
  const TempDir dir;
  CheckpointStore store(dir.path(), 2, 100);
  for (const std::int64_t step : {10, 20, 30}) write_step(store, step);
  CHECK(store.tag_good(20));
  CHECK_FALSE(store.tag_good(10));  // already removed
  for (const std::int64_t step : {40, 50}) write_step(store, step);
  CHECK(steps_of(store) == Steps{50, 40, 20});
  CHECK(store.list().back().good);
  CHECK_FALSE(store.list().front().good);
  CHECK(verify_checkpoint(dir / "step-00000020").state.step == 20);
  CHECK(store.tag_good(40));
  CHECK(store.tag_good(40));
  for (const std::int64_t step : {130, 140, 150}) write_step(store, step);
  CHECK(steps_of(store) == Steps{150, 140, 130, 40});
}

TEST_CASE("files are written past the page cache where their bytes allow it, to the last one") {
  const TempDir dir;
  const std::unique_ptr<Storage> storage = open_storage(dir.path());
  const std::size_t most = (std::size_t{21} << 20) + 4097;
  std::vector<std::byte> memory(most + 8192);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::span<const std::byte> aligned = std::span(memory).subspan((4096 - address % 4096) % 4096);
  int number = 0;
  for (const std::size_t size : {most, most - 1, most - 4097, std::size_t{4096} * 3000, std::size_t{5}})
    for (const std::size_t offset : {0u, 16u}) {
      const std::span<const std::byte> bytes = aligned.subspan(offset, size);
      const std::string name = "file-" + std::to_string(number++);
      INFO(size << " bytes from " << offset);
      storage->write(name, bytes);
      const std::string content = read_file(dir / name);
      REQUIRE(content.size() == size);
      CHECK(std::equal(bytes.begin(), bytes.end(), std::as_bytes(std::span(content)).begin()));
    }
}

TEST_CASE("a write that is not wanted any more ends after a piece and leaves no shard") {
  const TempDir dir;
  const std::unique_ptr<Storage> storage = open_storage(dir / "files");
  storage->make_folder("");
  std::vector<std::byte> memory((std::size_t{41} << 20));
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  // Past the page cache, and through it.
  for (const std::size_t offset : {std::size_t{4096} - address % 4096, std::size_t{17}}) {
    std::atomic<int> asked = 0;
    const std::string name = "file-" + std::to_string(offset);
    try {
      storage->write(name, std::span(memory).subspan(offset, std::size_t{40} << 20),
                     [&] { return ++asked < 3; });
      FAIL("the write was not ended");
    } catch (const StorageError& error) {
      CHECK(error.error_number == ECANCELED);
    }
    CHECK(asked >= 3);
    CHECK(asked < 8);  // of ten pieces
  }
  CheckpointStore store(dir / "run", 3);
  const Shard shard = stamped_shard(10);
  const ShardContent content = shard.content();
  CHECK_THROWS_AS(store.write_shards(10, 1, 0, std::span(&content, 1), [] { return false; }), StorageError);
  CHECK(std::filesystem::is_empty(dir / "run/step-00000010"));
  CHECK(store.write_shards(10, 1, 0, std::span(&content, 1), [] { return true; }).size() == 1);
}

TEST_CASE("a missing or shortened shard is named") {
  const TempDir dir;
  CheckpointStore store(dir.path(), 3);
  const std::string path = write_step(store, 10).path, shard = path + "/shard-00000.safetensors";
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  CHECK(message_of<CheckpointError>([&] { verify_checkpoint(path); }).find(shard) != std::string::npos);
  std::filesystem::remove(shard);
  CHECK(message_of<CheckpointError>([&] { verify_checkpoint(path); }).find(shard) != std::string::npos);
}

TEST_CASE("when no checkpoint is whole that is an error, never a silent fresh start") {
  const TempDir dir;
  CheckpointStore store(dir.path(), 3);
  write_step(store, 5);
  flip_byte(dir / "step-00000005/manifest.json", 10);
  CHECK_THROWS_AS(store.newest_valid({}), CheckpointError);
}

TEST_CASE("a damaged later checkpoint neither displaces a new one nor is counted") {
  const TempDir dir;
  CheckpointStore store(dir.path(), 1);
  write_step(store, 20);
  flip_byte(dir / "step-00000020/shard-00000.safetensors", 200);
  write_step(store, 15);
  CHECK(store.newest_valid({})->where.step == 15);
  write_step(store, 20);  // training reached this step again
  CHECK(steps_of(store) == Steps{20});
  CHECK(store.newest_valid({})->where.step == 20);
}

TEST_CASE("a shard that is not what its slices say is never written as a checkpoint") {
  const TempDir dir;
  CheckpointStore store(dir.path(), 1);
  Shard shard = stamped_shard(3);
  shard.slices[0].shape = {5, 8};
  const ShardContent content = shard.content();
  CHECK_THROWS_AS(store.write(state_at(3), std::span(&content, 1)), CheckpointError);
  CHECK(entries(dir.path()).empty());
}

TEST_CASE("a full disk is an error that leaves the earlier checkpoint and nothing else") {
  const TempDir dir;
  CheckpointStore store(dir.path(), 3);
  write_step(store, 5);
  const Shard large = stamped_shard(10, 10000);  // 320 KB
  const ShardContent content = large.content();
  // A limit on file sizes makes write(2) fail in mid-file, as on a full disk.
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit lower{100000, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &lower);
  const std::string what =
      message_of<CheckpointError>([&] { store.write(state_at(10), std::span(&content, 1)); });
  const std::string same_step =
      message_of<CheckpointError>([&] { store.write(state_at(5), std::span(&content, 1)); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(what.find("shard-00000.safetensors") != std::string::npos);
  CHECK(what.find("ulimit -f") != std::string::npos);
  CHECK_FALSE(same_step.empty());
  CHECK(entries(dir.path()) == std::set<std::string>{"step-00000005"});
  CHECK(store.newest_valid({})->where.step == 5);
}

TEST_CASE("a directory that cannot be made or written is an error at once") {
  const TempDir dir;
  write_file(dir / "file", "x");
  CHECK(message_of<CheckpointError>([&] { CheckpointStore(dir / "file", 1); }).find(dir / "file") !=
        std::string::npos);
  CHECK_THROWS_AS(CheckpointStore(dir / "file/below", 1), CheckpointError);
}

TEST_CASE("an unknown storage scheme is refused by name") {
  CHECK(message_of<trainerd::base::SpecError>([] { open_storage("gs://bucket/x"); }).find("gs") !=
        std::string::npos);
  const TempDir dir;
  write_file(dir / "a", "hello");
  CHECK(read_text(*open_storage("file://" + dir.path()), "a") == "hello");
}
