#include "core/run/agent/checkpoint_writer.h"

#include <fcntl.h>
#include <stdio.h>
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

// Replaces fsync in this test program: simulates a disk that hangs.
extern "C" int fsync(int fd) {
  ++hanging;
  while (disk_hangs) ::usleep(1000);
  --hanging;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace {

/// A checkpoint of one tensor, in its own segment.
core::run::CheckpointWriter::Job job_at(std::int64_t step) {
  const io::SafetensorsLayout layout =
      io::lay_out_safetensors({{.name = "w", .dtype = kernels::DType::f32, .shape = {4}}}, {});
  auto segment = std::make_shared<base::Segment>(base::Segment::create("test", layout.file_bytes));
  std::memcpy(segment->bytes().data(), layout.header.data(), layout.header.size());
  core::run::CheckpointWriter::Job job;
  job.state.step = step;
  job.shards.push_back({segment->bytes(), {{"w", kernels::DType::f32, {4}, {0}, {4}}}});
  job.memory.push_back(std::move(segment));
  return job;
}

core::run::CheckpointWriter::Result wait_for(core::run::CheckpointWriter& writer) {
  for (;;) {
    if (auto result = writer.take()) return *std::move(result);
    ::usleep(1000);
  }
}

using Outcome = core::run::CheckpointWriter::Outcome;

/// Puts a file in place of the directory.
void break_disk(const test::TempDir& dir) {
  std::filesystem::rename(dir / "run", dir / "away");
  test::write_file(dir / "run", "in the way");
}
void mend_disk(const test::TempDir& dir) {
  // In one go: the writer would make a missing directory.
  REQUIRE(::renameat2(AT_FDCWD, (dir / "away").c_str(), AT_FDCWD, (dir / "run").c_str(), RENAME_EXCHANGE) ==
          0);
  std::filesystem::remove(dir / "away");
}

}  // namespace

TEST_CASE("a checkpoint that cannot be written is tried again until it can", "[checkpoint-writer]") {
  const test::TempDir dir;
  core::run::CheckpointWriter writer(io::CheckpointStore(dir / "run", 2), {.first_seconds = 1e-3});
  break_disk(dir);
  writer.enqueue(job_at(1));
  for (int failures = 1; failures <= 4; ++failures) {
    const auto failed = wait_for(writer);
    REQUIRE(failed.outcome == Outcome::failed_once);
    CHECK(failed.failures == failures);
    CHECK(failed.step == 1);
    CHECK(failed.problem.find(dir / "run") != std::string::npos);
    // The delay doubles with each retry.
    CHECK(failed.retry_seconds == Approx(1e-3 * (1 << (failures - 1))));
    CHECK(writer.pending() == 1);
  }
  mend_disk(dir);
  auto written = wait_for(writer);
  while (written.outcome == Outcome::failed_once) written = wait_for(writer);
  CHECK(written.outcome == Outcome::written);
  CHECK(written.failures >= 4);
  CHECK(io::verify_checkpoint(written.record.path).state.step == 1);
  CHECK(writer.pending() == 0);
  // A successful write resets the count.
  break_disk(dir);
  writer.enqueue(job_at(2));
  CHECK(wait_for(writer).failures == 1);
  mend_disk(dir);
}

TEST_CASE("a newer snapshot takes the place of one that cannot be written", "[checkpoint-writer]") {
  const test::TempDir dir;
  // Retries of one snapshot are an hour apart: an earlier attempt is due to the newer snapshot.
  core::run::CheckpointWriter writer(io::CheckpointStore(dir / "run", 2),
                                     {.first_seconds = 3600, .most_seconds = 3600, .give_up_seconds = 1e6});
  break_disk(dir);
  writer.enqueue(job_at(1));
  CHECK(wait_for(writer).outcome == Outcome::failed_once);
  for (std::int64_t step = 2; step <= 4; ++step) {
    writer.enqueue(job_at(step));
    const auto superseded = wait_for(writer);
    CHECK(superseded.outcome == Outcome::superseded);
    CHECK(superseded.step == step - 1);
    CHECK(writer.pending() == 1);
  }
  // The last attempt writes the newest snapshot.
  mend_disk(dir);
  writer.end_within(10);
  const auto written = wait_for(writer);
  CHECK(written.outcome == Outcome::written);
  CHECK(written.record.step == 4);
  CHECK(writer.pending() == 0);
}

TEST_CASE("training that goes on undoes the limit of its end", "[checkpoint-writer]") {
  const test::TempDir dir;
  core::run::CheckpointWriter writer(io::CheckpointStore(dir / "run", 2), {.first_seconds = 1e-3});
  writer.end_within(0);
  writer.go_on();
  break_disk(dir);
  writer.enqueue(job_at(1));
  for (int tries = 0; tries < 3; ++tries) REQUIRE(wait_for(writer).outcome == Outcome::failed_once);
  writer.end_within(0);
  auto last = wait_for(writer);
  while (last.outcome == Outcome::failed_once) last = wait_for(writer);
  CHECK(last.outcome == Outcome::given_up);
  mend_disk(dir);
}

TEST_CASE("a job that is cancelled is not written, nor tried again", "[checkpoint-writer]") {
  const test::TempDir dir;
  core::run::CheckpointWriter writer(io::CheckpointStore(dir / "run", 2),
                                     {.first_seconds = 3600, .most_seconds = 3600, .give_up_seconds = 1e6});
  const auto cancellable = [](std::int64_t step) {
    auto flag = std::make_shared<std::atomic<bool>>(false);
    core::run::CheckpointWriter::Job job = job_at(step);
    job.cancelled = flag;
    return std::pair(std::move(job), flag);
  };
  break_disk(dir);
  auto [waiting, waiting_flag] = cancellable(2);
  auto [queued, queued_flag] = cancellable(1);
  writer.enqueue(std::move(waiting));
  CHECK(wait_for(writer).outcome == Outcome::failed_once);
  writer.enqueue(std::move(queued));  // of an earlier step, so that it does not replace the other
  writer.cancel(*queued_flag);
  writer.cancel(*waiting_flag);
  for (const std::int64_t step : {2, 1}) {
    const auto cancelled = wait_for(writer);
    CHECK(cancelled.outcome == Outcome::superseded);
    CHECK(cancelled.step == step);
  }
  CHECK(writer.pending() == 0);
  mend_disk(dir);
  CHECK(io::list_checkpoints(dir / "run").empty());
}

TEST_CASE("a writer gives up after its time and one last try, counted from the first failure",
          "[checkpoint-writer]") {
  const test::TempDir dir;
  core::run::CheckpointWriter writer(io::CheckpointStore(dir / "run", 2),
                                     {.first_seconds = 0.05, .give_up_seconds = 1});
  break_disk(dir);
  const double start = base::monotonic_seconds();
  writer.enqueue(job_at(1));
  CHECK(wait_for(writer).outcome == Outcome::failed_once);
  writer.enqueue(job_at(2));  // does not restart the timer
  auto last = wait_for(writer);
  while (last.outcome != Outcome::given_up) last = wait_for(writer);
  CHECK(last.step == 2);
  CHECK(last.failing_seconds >= 1);
  CHECK(last.failures >= 3);
  CHECK_THROWS_AS(std::rethrow_exception(last.error), base::CheckpointError);
  CHECK(base::monotonic_seconds() - start < 30);
  CHECK(writer.pending() == 0);
  // Later jobs get one attempt each until a write succeeds.
  writer.enqueue(job_at(3));
  CHECK(wait_for(writer).outcome == Outcome::given_up);
  mend_disk(dir);
  writer.enqueue(job_at(4));
  CHECK(wait_for(writer).outcome == Outcome::written);
}

TEST_CASE("an error that a retry cannot fix is not retried", "[checkpoint-writer]") {
  const test::TempDir dir;
  core::run::CheckpointWriter writer(io::CheckpointStore(dir / "run", 2), {});
  core::run::CheckpointWriter::Job job = job_at(1);
  job.shards.front().slices.front().name = "another";
  writer.enqueue(std::move(job));
  const auto refused = wait_for(writer);
  CHECK(refused.outcome == Outcome::given_up);
  CHECK(refused.failures == 0);
}

TEST_CASE("an abandoned writer is not waited for, and its unfinished checkpoint does not count",
          "[checkpoint-writer]") {
  const test::TempDir dir;
  const io::CheckpointStore store(dir / "run", 2);
  disk_hangs = true;
  const double start = base::monotonic_seconds();
  {
    core::run::CheckpointWriter writer(store, {});
    writer.enqueue(job_at(1));
    writer.enqueue(job_at(2));
    while (hanging == 0) ::usleep(1000);
    writer.abandon();
  }
  CHECK(base::monotonic_seconds() - start < 30);
  CHECK(store.list().empty());
  disk_hangs = false;
  // The write in progress finishes; the queued checkpoint was dropped.
  const double end = base::monotonic_seconds() + 60;
  while (store.list().empty() && base::monotonic_seconds() < end) ::usleep(1000);
  ::usleep(50'000);
  REQUIRE(store.list().size() == 1);
  CHECK(io::verify_checkpoint(store.list().front().path).state.step == 1);
}

TEST_CASE("a writer that is not abandoned finishes its queue", "[checkpoint-writer]") {
  const test::TempDir dir;
  const io::CheckpointStore store(dir / "run", 2);
  {
    core::run::CheckpointWriter writer(store, {});
    writer.enqueue(job_at(1));
    writer.enqueue(job_at(2));
  }
  CHECK(store.list().size() == 2);
}
