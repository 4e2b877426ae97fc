#include "parallel/comm/progress_thread.h"

#include <algorithm>
#include <chrono>

#include "kernels/base/clock.h"
#include "kernels/base/yield.h"

namespace trainerd::parallel {
namespace {

constexpr int kYields = 16;  // before a thread sleeps

}  // namespace

ProgressThread::ProgressThread(std::function<bool(const std::atomic<bool>&)> push, std::function<void()> wake)
    : push_(std::move(push)), wake_(std::move(wake)), thread_([this] { loop(); }) {}

ProgressThread::~ProgressThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    interrupt_ = true;
  }
  work_.notify_all();
  wake_();
  thread_.join();
}

std::uint64_t ProgressThread::enqueue(std::function<void()> operation) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(operation));
    ++enqueued_;
    interrupt_ = true;
  }
  work_.notify_one();
  wake_();
  return enqueued_;
}

void ProgressThread::push_soon() {
  {
    const std::lock_guard lock(mutex_);
    ++pushes_wanted_;
  }
  work_.notify_one();
}

bool ProgressThread::wait_until(std::unique_lock<std::mutex>& lock, double deadline,
                                const std::function<bool()>& ready) {
  const std::chrono::duration<double> left(std::max(0.0, deadline - base::monotonic_seconds()));
  return done_.wait_for(lock, left, ready);
}

bool ProgressThread::wait(std::uint64_t ticket, double deadline) {
  const auto ended = [&] { return finished_ >= ticket || failed_; };
  base::yield_until(kYields, ended);
  if (finished_ >= ticket) return true;
  std::unique_lock lock(mutex_);
  if (!wait_until(lock, deadline, ended)) return false;
  if (finished_ < ticket) std::rethrow_exception(error_);
  return true;
}

bool ProgressThread::finish(double deadline) {
  std::unique_lock lock(mutex_);
  const bool idle = wait_until(lock, deadline,
                               [&] { return (queue_.empty() && pushes_done_ == pushes_wanted_) || failed_; });
  return idle && !failed_;
}

bool ProgressThread::has_work() const {
  return stop_ || (!failed_ && (pushes_done_ != pushes_wanted_ || enqueued_ != finished_));
}

void ProgressThread::loop() {
  for (;;) {
    base::yield_until(kYields, [&] { return has_work(); });
    std::unique_lock lock(mutex_);
    work_.wait(lock, [&] { return has_work(); });
    if (stop_) return;
    interrupt_ = false;
    try {
      // An operation or push stays pending while it runs, so that `finish` waits for it. References to
      // elements of a deque stay valid when others are appended.
      if (!queue_.empty()) {
        const std::function<void()>& operation = queue_.front();
        lock.unlock();
        operation();
        lock.lock();
        queue_.pop_front();
        ++finished_;
      } else {
        // a later request may be for data that this push does not see
        const std::uint64_t wanted = pushes_wanted_;
        lock.unlock();
        const bool all = push_(interrupt_);
        lock.lock();
        if (all) pushes_done_ = wanted;
      }
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      error_ = std::current_exception();
      failed_ = true;
    }
    lock.unlock();
    done_.notify_all();
  }
}

}  // namespace trainerd::parallel
