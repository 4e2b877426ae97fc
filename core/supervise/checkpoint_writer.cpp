#include "core/supervise/checkpoint_writer.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::core {

CheckpointWriter::CheckpointWriter(io::CheckpointStore& store)
    : store_(store), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {
  if (!event_) throw base::device_error("cannot make an eventfd: " + base::errno_text(errno));
  thread_ = std::thread([this] { serve(); });
}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void CheckpointWriter::enqueue(Job job) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
    ++pending_;
  }
  wake_.notify_one();
}

std::optional<CheckpointWriter::Result> CheckpointWriter::take() {
  const std::lock_guard lock(mutex_);
  if (results_.empty()) return std::nullopt;
  std::uint64_t one = 0;
  [[maybe_unused]] const ssize_t n = ::read(event_.get(), &one, sizeof(one));
  Result result = std::move(results_.front());
  results_.pop_front();
  --pending_;
  return result;
}

std::size_t CheckpointWriter::pending() const {
  const std::lock_guard lock(mutex_);
  return pending_;
}

void CheckpointWriter::serve() {
  for (;;) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Job job = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();

    Result result{job.segment, {}, nullptr};
    const double start = base::monotonic_seconds();
    try {
      const io::StoredCheckpoint stored = store_.write(job.state, std::span(&job.shard, 1));
      result.record = {stored.step, static_cast<std::int64_t>(job.shard.bytes.size()), job.snapshot_seconds,
                       base::monotonic_seconds() - start, stored.path};
    } catch (...) {
      result.error = std::current_exception();
    }
    lock.lock();
    results_.push_back(std::move(result));
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(event_.get(), &one, sizeof(one));
  }
}

}  // namespace trainerd::core
