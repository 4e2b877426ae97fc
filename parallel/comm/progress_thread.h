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

/// Runs the background operations of one communicator in order, and pushes on messages that found no room.
/// After something has failed the later operations are not run: waiting for them throws the same error.
class ProgressThread {
 public:
  /// `push` moves messages on until none is left (true) or until its argument turns true; `wake` ends its
  /// sleep.
  ProgressThread(std::function<bool(const std::atomic<bool>&)> push, std::function<void()> wake);
  /// What is not finished is given up: an abort that ends it, or `finish`, comes first.
  ~ProgressThread();

  /// The operation's ticket: how many were enqueued.
  std::uint64_t enqueue(std::function<void()> operation);
  void push_soon();
  /// False when operation `ticket` is not done by `deadline` (base::monotonic_seconds). Throws what ended it.
  bool wait(std::uint64_t ticket, double deadline);
  std::uint64_t last_ticket() const { return enqueued_; }
  /// Waits until there is nothing left to do; false when there still is at `deadline`, or when something
  /// failed.
  bool finish(double deadline);

 private:
  void loop();
  bool wait_until(std::unique_lock<std::mutex>& lock, double deadline, const std::function<bool()>& ready);

  std::function<bool(const std::atomic<bool>&)> push_;
  std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::deque<std::function<void()>> queue_;
  std::uint64_t enqueued_ = 0;  ///< written by the enqueuing thread alone
  std::uint64_t finished_ = 0;
  std::uint64_t pushes_wanted_ = 0;
  std::uint64_t pushes_done_ = 0;
  bool stop_ = false;
  std::atomic<bool> interrupt_{false};  ///< there is something else to do than to push
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace trainerd::parallel
