// Files on a local disk.

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <string>

#include "io/checkpoint/files.h"
#include "io/storage/local_storage.h"
#include "io/storage/memory_file.h"
#include "tests/io/temp_dir.h"

namespace {
std::atomic<int> flushes{0};
}  // namespace

// Replaces the C library's fsync.
extern "C" int fsync(int fd) {
  ++flushes;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace io = trainerd::io;
namespace test = trainerd::test;

TEST_CASE("a copy that is there already is flushed, and not written again", "[storage]") {
  const test::TempDir dir;
  io::LocalStorage storage(dir.path());
  const std::string text = "the bytes of a shard";
  const io::MemoryFile file(io::bytes_of(text));
  test::write_file(dir / "shard", text);  // as left by a process killed before its fsync
  flushes = 0;
  CHECK(storage.copy("shard", file, {}) == 0);
  CHECK(flushes == 1);
  test::write_file(dir / "shard", "others");
  CHECK(storage.copy("shard", file, {}) == file.bytes());
  CHECK(flushes == 2);
  CHECK(io::read_text(storage, "shard") == text);
}
