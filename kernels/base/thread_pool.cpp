#include "kernels/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <exception>
#include <mutex>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/yield.h"

namespace trainerd::base {
namespace {

// Waking a sleeping thread takes longer than most operators (a tenth of a millisecond and more, if a virtual
// machine's core is halted). So a waiting thread first polls, then polls and yields its core for about as
// long as two threads' last blocks differ, and only then sleeps.
constexpr int kPauses = 2000;
constexpr int kYields = 2000;

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof(set), &set);
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Polls for a while until `done`. False means that it is time to sleep.
template <class Done>
bool poll_until(const Done& done) {
  for (int i = 0; i < kPauses; ++i) {
    if (done()) return true;
    relax();
  }
  return yield_until(kYields, done);
}

}  // namespace

struct ThreadPool::State {
  // Incrementing `epoch` publishes a loop; `busy` counts the helpers that have not finished it.
  alignas(64) std::atomic<std::uint32_t> epoch{0};
  alignas(64) std::atomic<std::int64_t> next{0};
  alignas(64) std::atomic<std::uint32_t> busy{0};
  std::int64_t blocks = 0;
  Invoke invoke = nullptr;
  const void* body = nullptr;
  bool stop = false;
  std::mutex error_mutex;
  std::exception_ptr error;

  void work(int thread) {
    for (;;) {
      const std::int64_t block = next.fetch_add(1, std::memory_order_relaxed);
      if (block >= blocks) return;
      try {
        invoke(body, block, thread);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
      }
    }
  }

  void serve(int thread) {
    std::uint32_t seen = 0;
    for (;;) {
      poll_until([&] { return epoch.load(std::memory_order_acquire) != seen; });
      while (epoch.load(std::memory_order_acquire) == seen) epoch.wait(seen, std::memory_order_acquire);
      seen = epoch.load(std::memory_order_acquire);
      if (stop) return;
      work(thread);
      if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) busy.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads, std::vector<int> cpus)
    : threads_(threads), state_(std::make_unique<State>()) {
  check(threads >= 1, "a thread pool needs at least one thread");
  if (!cpus.empty()) pin_to(cpus[0]);
  try {
    for (int i = 1; i < threads; ++i)
      workers_.emplace_back(
          [this, i, cpu = cpus.empty() ? -1 : cpus[static_cast<std::size_t>(i) % cpus.size()]] {
            if (cpu >= 0) pin_to(cpu);
            state_->serve(i);
          });
  } catch (...) {  // a limit on threads
    end();
    throw;
  }
}

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::end() {
  state_->stop = true;
  state_->epoch.fetch_add(1, std::memory_order_release);
  state_->epoch.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_blocks(std::int64_t blocks, Invoke invoke, const void* body) {
  if (blocks <= 0) return;
  State& s = *state_;
  if (threads_ == 1 || blocks == 1) {
    for (std::int64_t b = 0; b < blocks; ++b) invoke(body, b, 0);
    return;
  }
  s.blocks = blocks;
  s.invoke = invoke;
  s.body = body;
  s.next.store(0, std::memory_order_relaxed);
  s.busy.store(static_cast<std::uint32_t>(threads_ - 1), std::memory_order_relaxed);
  s.epoch.fetch_add(1, std::memory_order_release);
  s.epoch.notify_all();
  s.work(0);
  poll_until([&] { return s.busy.load(std::memory_order_acquire) == 0; });
  for (std::uint32_t left = s.busy.load(std::memory_order_acquire); left != 0;
       left = s.busy.load(std::memory_order_acquire))
    s.busy.wait(left, std::memory_order_acquire);
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

}  // namespace trainerd::base
