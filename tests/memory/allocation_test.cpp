// Memory that a step really allocates, seen from outside our allocator: every allocation of the process goes
// through interposers. A separate executable, because sanitizers interpose the same functions.

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>

#include "../core/train_support.h"
#include "interposers.h"

using namespace trainerd;
using namespace trainerd::test;

namespace {

/// True if touching `address` ends the process.
bool faults(const std::byte* address) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    const volatile std::byte* p = address;
    [[maybe_unused]] const std::byte value = *p;
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

core::job::JobSpec job_of_case() {
  core::job::JobSpec job = test::small_job(GENERATE("fp32", "bf16"));
  // Larger than the threshold: one activation is 4 x 128 x 256 x 2 bytes, 256 KiB.
  job.model.hidden = 256;
  job.model.head_dim = 64;
  job.model.ffn = 512;
  job.model.seq_len = 128;
  job.evaluate = {.every = 1, .batches = 1};
  job.recompute.kind = GENERATE(core::job::RecomputeKind::none, core::job::RecomputeKind::full);
  return job;
}

}  // namespace

TEST_CASE("the interposers see an allocation over the limit") {
  large_allocations = 0;
  armed = true;
  std::vector<char> v(kLarge + 1);
  armed = false;
  CHECK(v.size() == kLarge + 1);
  CHECK(large_allocations == 1);
}

TEST_CASE("after the first step and evaluation nothing over 64 KiB is allocated") {
  const core::job::JobSpec job = job_of_case();
  core::rank::DeviceRank rank(job, test::cpu_topology(GENERATE(1, 2)));
  rank.trainer().initialise();
  const auto samples = test::skewed_samples(job, 1);
  rank.trainer().step(1, *test::batches(rank.trainer(), samples), {});
  rank.trainer().evaluate(*test::batches(rank.trainer(), samples));
  large_allocations = largest = 0;
  armed = true;
  for (std::int64_t step = 2; step <= 5; ++step)
    rank.trainer().step(step, *test::batches(rank.trainer(), samples), {});
  rank.trainer().evaluate(*test::batches(rank.trainer(), samples));
  armed = false;
  CAPTURE(largest.load());
  CHECK(large_allocations == 0);
}

TEST_CASE("every region lies between guard pages and has the planned size") {
  const core::job::JobSpec job = job_of_case();
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  core::train::StepMemory& memory = rank.memory();
  std::vector<kernels::Arena*> arenas{&memory.persistent(), &memory.scratch()};
  for (int i = 0; i < parallel::kLifetimes; ++i)
    arenas.push_back(&memory.slot(0, static_cast<core::train::SlotClass>(i), 0));
  for (const kernels::Arena* arena : arenas) {
    CAPTURE(arena->name());
    const std::int64_t bytes = rank.plan().memory.bytes_of(arena->name());
    CHECK(arena->capacity() == bytes);
    CHECK_FALSE(faults(arena->base()));
    CHECK_FALSE(faults(arena->base() + bytes - 1));
    // The region ends within a cache line of its guard page: one byte too many is a fault, not a silent
    // overwrite.
    CHECK(faults(arena->base() + kernels::align_up(bytes)));
  }
}

TEST_CASE("real steps touch the bytes that the plan counted") {
  const core::job::JobSpec job = job_of_case();
  core::rank::DeviceRank rank(job, test::cpu_topology(2));
  core::train::StepMemory& memory = rank.memory();
  rank.trainer().initialise();
  // Without the scratch stack: how much of their scratch a GEMM library or a late thread touches cannot be
  // predicted. tests/core/train/memory_test.cpp compares the stack with the plan.
  std::vector<kernels::Arena*> arenas;
  for (int i = 0; i < parallel::kLifetimes; ++i)
    arenas.push_back(&memory.slot(0, static_cast<core::train::SlotClass>(i), 0));
  for (kernels::Arena* arena : arenas)
    std::memset(arena->base(), 0xA5, static_cast<std::size_t>(arena->capacity()));
  const auto samples = test::skewed_samples(job, 1);
  for (std::int64_t step = 1; step <= 2; ++step)
    rank.trainer().step(step, *test::batches(rank.trainer(), samples), {});
  rank.trainer().evaluate(*test::batches(rank.trainer(), samples));
  for (kernels::Arena* arena : arenas) {
    CAPTURE(arena->name());
    std::int64_t highest = arena->capacity();
    while (highest > 0 && arena->base()[highest - 1] == std::byte{0xA5}) --highest;
    // The last tensor may not touch its alignment padding, and the last element may equal the pattern by
    // chance.
    CHECK(arena->capacity() - highest <= kernels::kAlignment + 4);
  }
}
