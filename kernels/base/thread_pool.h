#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace trainerd::base {

/// A fixed set of threads that run the blocks of one loop at a time. The caller is thread 0 and works too.
/// Waits poll for a fraction of a millisecond, yielding to other processes, and then sleep (futex).
/// Which thread runs a block is not fixed; what a block computes must not depend on it.
class ThreadPool {
 public:
  /// `threads` >= 1, the caller included. `cpus`, when not empty, pins thread i to cpus[i % size].
  explicit ThreadPool(int threads, std::vector<int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls `body(block, thread)` once for each block in [0, blocks), and returns when all are done. Blocks
  /// are handed out one at a time in rising order. The first exception of a block is rethrown here. Not
  /// reentrant, and for one calling thread at a time.
  template <class Body>
  void run(std::int64_t blocks, const Body& body) {
    run_blocks(
        blocks, [](const void* f, std::int64_t b, int t) { (*static_cast<const Body*>(f))(b, t); }, &body);
  }

 private:
  using Invoke = void (*)(const void*, std::int64_t, int);
  void run_blocks(std::int64_t blocks, Invoke invoke, const void* body);
  struct State;
  int threads_;
  std::unique_ptr<State> state_;
  std::vector<std::thread> workers_;
};

}  // namespace trainerd::base
