// Checkpoints in an object store. Cases that need a store are run by tests/system/durable_test.py, whose
// store verifies signatures with its own code and fails on demand.

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/s3_storage/s3_storage.h"
#include "io/storage/file_errors.h"
#include "io/storage/memory_file.h"
#include "tests/io/checkpoint_support.h"
#include "tests/io/mortal_storage.h"
#include "tests/io/temp_dir.h"

using namespace trainerd::io;
using namespace trainerd::test;

namespace {

S3Settings store_of_test() {
  S3Settings settings = s3_settings([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
  settings.first_seconds = settings.give_up_seconds = 60;
  return settings;
}

std::vector<std::byte> random_bytes(std::size_t size, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace

TEST_CASE("parts of a file are at least 8 MiB and at most 9,000", "[s3-storage]") {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  CHECK(part_bytes_of(0) == 8 * kMiB);
  CHECK(part_bytes_of(9'000 * 8 * kMiB) == 8 * kMiB);
  CHECK(part_bytes_of(9'000 * 8 * kMiB + 1) == 9 * kMiB);
  const std::int64_t large = std::int64_t{5} << 40;  // the largest object of S3
  CHECK((large + part_bytes_of(large) - 1) / part_bytes_of(large) <= 9'000);
}

TEST_CASE("an interrupted copy goes on where it was, and is read by ranges", "[.s3-storage]") {
  S3Storage storage("s3://written/files/", store_of_test());
  CHECK(storage.path_of("a") == "s3://written/files/a");
  const std::vector<std::byte> bytes = random_bytes((std::size_t{29} << 20) + 5, 7);
  const MemoryFile file(bytes);
  struct Killed {};
  std::atomic<std::int64_t> paced = 0, sent = 0;
  const Pace dies = [&](std::int64_t part) {
    if (++paced > 2) throw Killed{};
    sent += part;
  };
  CHECK_THROWS_AS(storage.copy("x/large", file, dies), Killed);
  CHECK_FALSE(storage.exists("x/large"));
  CHECK(storage.list("").empty());
  CHECK(storage.copy("x/large", file, {}) == file.bytes() - sent);
  CHECK(storage.copy("x/large", file, {}) == 0);
  CHECK(storage.exists("x"));
  CHECK(storage.list("x") == std::vector<std::string>{"large"});
  const auto back = storage.open("x/large");
  REQUIRE(back->bytes() == file.bytes());
  std::vector<std::byte> whole(bytes.size());
  back->read(0, whole);
  CHECK(whole == bytes);
  std::minstd_rand random(1);
  for (int i = 0; i < 200; ++i) {  // reads across blocks and at the end
    const std::size_t begin = i == 0 ? bytes.size() - 3000 : random() % (bytes.size() - 3000);
    std::vector<std::byte> some(3000);
    back->read(static_cast<std::int64_t>(begin), some);
    CHECK(std::equal(some.begin(), some.end(), bytes.begin() + static_cast<std::ptrdiff_t>(begin)));
  }
  CHECK_THROWS_AS(back->read(file.bytes() - 1, std::span(whole).first(2)), trainerd::base::CheckpointError);
  // Different bytes of the same size are sent. The file opened before is recognized as replaced.
  const std::vector<std::byte> others = random_bytes(bytes.size(), 8);
  CHECK(storage.copy("x/large", MemoryFile(others), {}) == file.bytes());
  CHECK(message_of<StorageError>([&] {
          back->read(5 << 20, std::span(whole).first(3 << 20));
        }).find("was replaced") != std::string::npos);
  CHECK_THROWS_AS(storage.copy("x/other", file, [](std::int64_t) { throw Killed{}; }), Killed);
  storage.remove("x");
  storage.remove("x");
  CHECK_FALSE(storage.exists("x"));
  CHECK(message_of<StorageError>([&] { storage.open("x/large"); }).find("s3://written/files/x/large") !=
        std::string::npos);
}

TEST_CASE("a kill at any operation on an object store leaves every checkpoint that was complete whole",
          "[.s3-storage]") {
  int operations = 0;
  for (bool finished = false; !finished; ++operations) {
    INFO("killed at operation " << operations);
    const std::shared_ptr<Storage> bucket =
        std::make_shared<S3Storage>("s3://written/run" + std::to_string(operations), store_of_test());
    std::int64_t completed = 0;
    try {
      CheckpointStore store(std::make_shared<Mortal>(bucket, operations + 1), {.keep = 1});
      for (const std::int64_t value : {1, 2, 3}) {  // step 10 twice, then step 20
        const Shard shard = stamped_shard(value);
        const ShardContent content = shard.content();
        store.write(state_at(value < 3 ? 10 : 20), std::span(&content, 1));
        completed = value;
      }
      finished = true;
    } catch (const StorageError&) {}
    CheckpointStore store(bucket, {.keep = 1});
    int rejected = 0;
    const auto found = store.newest_valid([&](const std::string&, const std::string&) { ++rejected; });
    CHECK(rejected == 0);
    REQUIRE(found.has_value() >= (completed > 0));
    if (found) {
      float value = 0;
      CheckpointReader reader(found->where.path, remote_storages(store_of_test));
      reader.read(slice("w", {6, 8}, {5, 7}, {1, 1}), std::as_writable_bytes(std::span(&value, 1)));
      CHECK(value >= static_cast<float>(completed));
    }
    for (const std::string& name : bucket->list("")) bucket->remove(name);
  }
  CHECK(operations > 30);
}
