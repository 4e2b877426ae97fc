#include "core/supervise/checkpoint_writer.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::core {

struct CheckpointWriter::State {
  explicit State(const io::CheckpointStore& s)
      : store(s), event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {
    if (!event) throw base::device_error("cannot make an eventfd: " + base::errno_text(errno));
  }

  void serve();
  Result write(const Job& job);

  io::CheckpointStore store;
  base::UniqueFd event;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Job> queue;
  std::deque<Result> results;
  std::size_t pending = 0;
  bool stop = false;
};

CheckpointWriter::Result CheckpointWriter::State::write(const Job& job) {
  Result result{.part = job.part, .segment = job.segment};
  const double start = base::monotonic_seconds();
  const auto seconds = [&] { return job.write_seconds + base::monotonic_seconds() - start; };
  try {
    std::int64_t bytes = 0;
    for (const io::ShardContent& shard : job.shards) bytes += static_cast<std::int64_t>(shard.bytes.size());
    for (const io::WrittenShard& shard : job.written) bytes += shard.info.bytes;
    if (job.part == Part::shards) {
      result.written = store.write_shards(job.state.step, job.first_rank, job.shards);
      result.record = {job.state.step, bytes, job.snapshot_seconds, seconds(), ""};
      return result;
    }
    const io::StoredCheckpoint stored =
        job.part == Part::all ? store.write(job.state, job.shards) : store.complete(job.state, job.written);
    result.record = {stored.step, bytes, job.snapshot_seconds, seconds(), stored.path};
  } catch (...) {
    result.error = std::current_exception();
  }
  return result;
}

void CheckpointWriter::State::serve() {
  std::unique_lock lock(mutex);
  for (;;) {
    wake.wait(lock, [this] { return stop || !queue.empty(); });
    if (queue.empty()) return;
    const Job job = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    Result result = write(job);
    lock.lock();
    results.push_back(std::move(result));
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(event.get(), &one, sizeof(one));
  }
}

CheckpointWriter::CheckpointWriter(const io::CheckpointStore& store)
    : state_(std::make_shared<State>(store)), thread_([state = state_] { state->serve(); }) {}

CheckpointWriter::~CheckpointWriter() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_one();
  thread_.join();
}

void CheckpointWriter::abandon() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
    state_->queue.clear();
  }
  state_->wake.notify_one();
  thread_.detach();
}

void CheckpointWriter::enqueue(Job job) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue.push_back(std::move(job));
    ++state_->pending;
  }
  state_->wake.notify_one();
}

std::optional<CheckpointWriter::Result> CheckpointWriter::take() {
  const std::lock_guard lock(state_->mutex);
  if (state_->results.empty()) return std::nullopt;
  std::uint64_t one = 0;
  [[maybe_unused]] const ssize_t n = ::read(state_->event.get(), &one, sizeof(one));
  Result result = std::move(state_->results.front());
  state_->results.pop_front();
  --state_->pending;
  return result;
}

std::size_t CheckpointWriter::pending() const {
  const std::lock_guard lock(state_->mutex);
  return state_->pending;
}

int CheckpointWriter::event_fd() const { return state_->event.get(); }

}  // namespace trainerd::core
