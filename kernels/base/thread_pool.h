#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace trainerd::base {

/// A fixed set of threads that run the blocks of one loop at a time. The caller is thread 0 and works too.
/// Waiting threads poll for a fraction of a millisecond, yielding to other processes, and then sleep (futex).
/// Any thread may run a block, so the result of a block must not depend on its thread.
class ThreadPool {
 public:
  /// `threads` >= 1 includes the caller. If `cpus` is not empty, thread i is pinned to cpus[i % size].
  explicit ThreadPool(int threads, std::vector<int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls `body(block, thread)` once per block in [0, blocks), and returns when all are done. Blocks are
  /// assigned one at a time in rising order. Rethrows the first exception of a block. Not reentrant; for one
  /// calling thread at a time.
  template <class Body>
  void run(std::int64_t blocks, const Body& body) {
    run_blocks(
        blocks, [](const void* f, std::int64_t b, int t) { (*static_cast<const Body*>(f))(b, t); }, &body);
  }

 private:
  void end();
  using Invoke = void (*)(const void*, std::int64_t, int);
  void run_blocks(std::int64_t blocks, Invoke invoke, const void* body);
  struct State;
  int threads_;
  std::unique_ptr<State> state_;
  std::vector<std::thread> workers_;
};

}  // namespace trainerd::base
