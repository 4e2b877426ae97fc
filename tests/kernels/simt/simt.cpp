#include "tests/kernels/simt/simt.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

namespace trainerd::test::simt {

namespace {

constexpr std::size_t kStackBytes = 256 << 10;
constexpr unsigned kWarp = 32;

/// A barrier of threads: the last one to arrive releases all.
struct Barrier {
  unsigned members = 0, arrived = 0;
  std::uint64_t generation = 0;
};

/// A thread of a block. Fibers last for all blocks: making one takes two system calls.
struct Fiber {
  unsigned thread = 0;
  jmp_buf at;
  bool started = false, done = false;
  const Barrier* waits_for = nullptr;
  std::uint64_t generation = 0;
};

struct Warp {
  Barrier barrier;
  std::uint64_t words[kWarp] = {};
  const void* instruction = nullptr;
  void* operands[kWarp] = {};
};

struct Block {
  std::vector<Fiber> fibers;  ///< as many as the largest block so far has threads
  std::vector<Warp> warps;
  Barrier barrier;
  Fiber* now = nullptr;
  jmp_buf scheduler;
  const std::function<void()>* thread = nullptr;
  std::vector<std::byte> shared;
};

Order order_now = Order::forward;
std::mt19937 generator(1);
Block block;

/// Room for the stacks of the largest block, each with a guard page at its end.
std::byte* stack_of(std::size_t thread) {
  static std::byte* const base = [] {
    void* memory = ::mmap(nullptr, 1024 * kStackBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    auto* at = static_cast<std::byte*>(memory);
    for (std::size_t i = 0; i < 1024; ++i) ::mprotect(at + i * kStackBytes, 4096, PROT_NONE);
    return at;
  }();
  return base + thread * kStackBytes;
}

void fiber_main() {
  for (;;) {
    (*block.thread)();
    block.now->done = true;
    if (_setjmp(block.now->at) == 0) _longjmp(block.scheduler, 1);
  }
}

/// Runs a fiber until it waits or ends.
void resume(Fiber& fiber) {
  block.now = &fiber;
  threadIdx = {fiber.thread, 0, 0};
  if (_setjmp(block.scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.at, 1);
  fiber.started = true;
  ucontext_t first;
  ::getcontext(&first);
  first.uc_stack.ss_sp = stack_of(fiber.thread);
  first.uc_stack.ss_size = kStackBytes;
  ::makecontext(&first, fiber_main, 0);
  ::setcontext(&first);
  std::abort();
}

void wait_at(Barrier& barrier) {
  Fiber& fiber = *block.now;
  if (++barrier.arrived == barrier.members) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  fiber.waits_for = &barrier;
  fiber.generation = barrier.generation;
  if (_setjmp(fiber.at) == 0) _longjmp(block.scheduler, 1);
}

void arrange(std::vector<unsigned>& order) {
  std::iota(order.begin(), order.end(), 0u);
  if (order_now == Order::backward) std::reverse(order.begin(), order.end());
  if (order_now == Order::shuffled) std::shuffle(order.begin(), order.end(), generator);
}

void run_block(dim3 grid, dim3 threads, dim3 index) {
  if (threads.x % kWarp != 0 && threads.x != 1) {
    std::fprintf(stderr, "simt: a block of %u threads is not made of whole warps\n", threads.x);
    std::abort();
  }
  gridDim = grid;
  blockDim = threads;
  blockIdx = index;
  if (block.fibers.size() < threads.x) block.fibers.resize(threads.x);
  block.warps.assign((threads.x + kWarp - 1) / kWarp, {});
  block.barrier = {.members = threads.x};
  std::fill(block.shared.begin(), block.shared.end(), std::byte{0xff});
  for (Warp& warp : block.warps) warp.barrier.members = std::min(threads.x, kWarp);
  for (unsigned t = 0; t < threads.x; ++t) {
    Fiber& fiber = block.fibers[t];
    fiber.thread = t;
    fiber.done = false;
    fiber.waits_for = nullptr;
  }
  // A warp runs as far as it can before the next one: other warps then see writes that come too early.
  std::vector<unsigned> warps(block.warps.size()), lanes(std::min(threads.x, kWarp));
  for (bool all_done = false, progress = true; !all_done;) {
    if (!progress)
      fail("some threads of a block or warp never reach the barrier or shuffle where others wait");
    progress = false;
    all_done = true;
    arrange(warps);
    for (const unsigned warp : warps)
      for (bool moved = true; moved;) {
        moved = false;
        arrange(lanes);
        for (const unsigned lane : lanes) {
          Fiber& fiber = block.fibers[warp * kWarp + lane];
          if (fiber.done) continue;
          all_done = false;
          if (fiber.waits_for != nullptr && fiber.waits_for->generation == fiber.generation) continue;
          fiber.waits_for = nullptr;
          resume(fiber);
          progress = moved = true;
        }
      }
  }
  check_asynchronous();
}

}  // namespace

void fail(const char* what) {
  std::fprintf(stderr, "simt: %s (block %u, %u; threads %u)\n", what, blockIdx.x, blockIdx.y, blockDim.x);
  std::abort();
}

void set_order(Order order) { order_now = order; }
int lane() { return static_cast<int>(block.now->thread % kWarp); }
void block_barrier() { wait_at(block.barrier); }
void warp_barrier() { wait_at(block.warps[block.now->thread / kWarp].barrier); }

const std::uint64_t* exchange(std::uint64_t word) {
  Warp& warp = block.warps[block.now->thread / kWarp];
  warp.words[lane()] = word;
  warp_barrier();
  return warp.words;
}

void together(const void* instruction, void* operands, void (*whole)(void* const* lanes)) {
  Warp& warp = block.warps[block.now->thread / kWarp];
  if (warp.barrier.members != kWarp) fail("an instruction of a whole warp in a block of one thread");
  if (warp.barrier.arrived == 0) warp.instruction = instruction;
  if (warp.instruction != instruction) fail("the lanes of a warp are at different instructions");
  warp.operands[lane()] = operands;
  if (warp.barrier.arrived + 1 == kWarp) whole(warp.operands);
  warp_barrier();
}

std::byte* shared_at(std::uint32_t address, std::size_t bytes) {
  if (address % bytes != 0) fail("an address in shared memory is not aligned");
  if (address + bytes > block.shared.size()) fail("an address lies outside of the block's shared memory");
  return block.shared.data() + address;
}

void run(dim3 grid, dim3 threads, const std::function<void()>& thread, std::size_t shared_bytes) {
  block.thread = &thread;
  block.shared.resize(shared_bytes + kSharedBegin);
  std::vector<unsigned> blocks(static_cast<std::size_t>(grid.x) * grid.y);
  arrange(blocks);
  for (const unsigned b : blocks) run_block(grid, threads, {b % grid.x, b / grid.x, 0});
}

}  // namespace trainerd::test::simt
