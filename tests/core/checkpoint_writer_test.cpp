#include "core/supervise/checkpoint_writer.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using namespace trainerd;

namespace {

std::atomic<bool> disk_hangs{false};
std::atomic<int> hanging{0};

}  // namespace

// Every fsync of this test program comes here: a disk that stands still.
extern "C" int fsync(int fd) {
  ++hanging;
  while (disk_hangs) ::usleep(1000);
  --hanging;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace {

/// A checkpoint of one tensor in a segment of its own.
core::CheckpointWriter::Job job_at(std::int64_t step) {
  const io::SafetensorsLayout layout =
      io::lay_out_safetensors({{.name = "w", .dtype = kernels::DType::f32, .shape = {4}}}, {});
  auto segment = std::make_shared<base::Segment>(base::Segment::create("test", layout.file_bytes));
  std::memcpy(segment->bytes().data(), layout.header.data(), layout.header.size());
  core::CheckpointWriter::Job job;
  job.state.step = step;
  job.shards.push_back({segment->bytes(), {{"w", kernels::DType::f32, {4}, {0}, {4}}}});
  job.memory.push_back(std::move(segment));
  return job;
}

core::CheckpointWriter::Result wait_for(core::CheckpointWriter& writer) {
  for (;;) {
    if (auto result = writer.take()) return *std::move(result);
    ::usleep(1000);
  }
}

}  // namespace

TEST_CASE("a checkpoint that cannot be written is told as its error and the next one is written",
          "[checkpoint-writer]") {
  const test::TempDir dir;
  core::CheckpointWriter writer(io::CheckpointStore(dir / "run", 2));
  std::filesystem::remove_all(dir / "run");
  test::write_file(dir / "run", "a file where the directory was");
  writer.enqueue(job_at(1));
  const auto failed = wait_for(writer);
  REQUIRE(failed.error);
  CHECK_THROWS_AS(std::rethrow_exception(failed.error), base::CheckpointError);
  std::filesystem::remove(dir / "run");
  std::filesystem::create_directories(dir / "run");
  writer.enqueue(job_at(2));
  const auto written = wait_for(writer);
  CHECK_FALSE(written.error);
  CHECK(written.record.step == 2);
  CHECK(writer.pending() == 0);
  CHECK(io::verify_checkpoint(written.record.path).state.step == 2);
}

TEST_CASE("an abandoned writer is not waited for and what it did not finish is no checkpoint",
          "[checkpoint-writer]") {
  const test::TempDir dir;
  const io::CheckpointStore store(dir / "run", 2);
  disk_hangs = true;
  const double start = base::monotonic_seconds();
  {
    core::CheckpointWriter writer(store);
    writer.enqueue(job_at(1));
    writer.enqueue(job_at(2));
    while (hanging == 0) ::usleep(1000);
    writer.abandon();
  }
  CHECK(base::monotonic_seconds() - start < 5);
  CHECK(store.list().empty());
  disk_hangs = false;
  // The one that was being written finishes by itself; the queued one was dropped.
  const double end = base::monotonic_seconds() + 10;
  while (store.list().empty() && base::monotonic_seconds() < end) ::usleep(1000);
  ::usleep(50'000);
  REQUIRE(store.list().size() == 1);
  CHECK(io::verify_checkpoint(store.list().front().path).state.step == 1);
}

TEST_CASE("a writer that is not abandoned finishes what is queued", "[checkpoint-writer]") {
  const test::TempDir dir;
  const io::CheckpointStore store(dir / "run", 2);
  {
    core::CheckpointWriter writer(store);
    writer.enqueue(job_at(1));
    writer.enqueue(job_at(2));
  }
  CHECK(store.list().size() == 2);
}
