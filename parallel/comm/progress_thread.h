#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace trainerd::parallel {

/// Runs the background operations of one communicator in order, and retries messages that found no room.
/// After a failure later operations do not run; waiting for them throws the same error.
class ProgressThread {
 public:
  /// `push` sends waiting messages until none is left (returns true) or its argument becomes true. `wake`
  /// ends its sleep.
  ProgressThread(std::function<bool(const std::atomic<bool>&)> push, std::function<void()> wake);
  /// Gives up unfinished operations. Call `finish`, or an abort that ends them, first.
  ~ProgressThread();

  /// Returns the operation's ticket: the number of operations enqueued so far.
  std::uint64_t enqueue(std::function<void()> operation);
  void push_soon();
  /// False if operation `ticket` is not done by `deadline` (base::monotonic_seconds). Throws the error that
  /// ended it.
  bool wait(std::uint64_t ticket, double deadline);
  std::uint64_t last_ticket() const { return enqueued_; }
  /// Waits until there is nothing left to do. False at `deadline`, or after a failure.
  bool finish(double deadline);

 private:
  void loop();
  bool wait_until(std::unique_lock<std::mutex>& lock, double deadline, const std::function<bool()>& ready);
  /// True if the thread has something to do. Needs no lock.
  bool has_work() const;

  std::function<bool(const std::atomic<bool>&)> push_;
  std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::deque<std::function<void()>> queue_;
  // Written under the lock, and read without it by a thread that polls before it sleeps.
  std::atomic<std::uint64_t> enqueued_{0};
  std::atomic<std::uint64_t> finished_{0};
  std::atomic<std::uint64_t> pushes_wanted_{0};
  std::atomic<std::uint64_t> pushes_done_{0};
  std::atomic<bool> failed_{false};
  std::atomic<bool> stop_{false};
  std::atomic<bool> interrupt_{false};  ///< set when a push should return because there is other work
  std::exception_ptr error_;            ///< what `failed_` says that there is
  std::thread thread_;
};

}  // namespace trainerd::parallel
