#include "core/run/agent/checkpoint_writer.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <utility>

#include "io/storage/file_errors.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {
namespace {

// Maximum wait between two tries after training has ended: the exit waits for them.
constexpr double kMaxAtEndSeconds = 1;

/// True if a failure of this part would lose a checkpoint's state.
bool holds_state(CheckpointWriter::Part part) {
  return part != CheckpointWriter::Part::discard && part != CheckpointWriter::Part::tag;
}

bool is_cancelled(const CheckpointWriter::Job& job) { return job.cancelled && *job.cancelled; }

}  // namespace

struct CheckpointWriter::State {
  State(const io::CheckpointStore& s, const Retries& r, std::function<bool()> a)
      : store(s),
        retries(r),
        allowed(std::move(a)),
        event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {
    if (!event) throw base::device_error("cannot make an eventfd: " + base::errno_text(errno));
  }

  void serve();
  void bring_to_disk(std::unique_lock<std::mutex>& lock, Job job);
  Result attempt(const Job& job);
  bool is_replaced(const Job& job) const;
  void wait_to_retry(std::unique_lock<std::mutex>& lock, const Job& job);
  void post(Result result);

  io::CheckpointStore store;
  Retries retries;
  std::function<bool()> allowed;
  base::UniqueFd event;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Job> queue;
  std::deque<Result> results;
  std::size_t pending = 0;
  bool stop = false;
  double end = std::numeric_limits<double>::infinity();  ///< monotonic time of the last try
  // Guarded by `mutex`.
  int failures = 0;  ///< since the last success
  double failing_since = 0, next_try = 0;
};

CheckpointWriter::Result CheckpointWriter::State::attempt(const Job& job) {
  Result result{.part = job.part, .step = job.state.step, .folder = job.folder};
  const double start = base::monotonic_seconds();
  const auto seconds = [&] { return job.write_seconds + base::monotonic_seconds() - start; };
  const io::Wanted wanted = [&job] { return !is_cancelled(job); };
  try {
    if (!allowed()) throw base::comm_error("this agent does not lead the run any more");
    std::int64_t bytes = 0;
    for (const io::ShardContent& shard : job.shards) bytes += static_cast<std::int64_t>(shard.bytes.size());
    for (const io::WrittenShard& shard : job.written) bytes += shard.info.bytes;
    if (job.part == Part::discard) {
      store.discard(job.state.step, job.folder);
    } else if (job.part == Part::tag) {
      if (!store.tag_good(job.state.step))
        throw base::checkpoint_error("the checkpoint of step " + std::to_string(job.state.step) + " is gone");
    } else if (job.part == Part::shards) {
      result.written = store.write_shards(job.state.step, job.folder, job.first_rank, job.shards, wanted);
      result.record = {job.state.step, bytes, job.snapshot_seconds, seconds(), ""};
    } else {
      io::StoredCheckpoint stored = job.part == Part::all
                                        ? store.write(job.state, job.shards, job.folder, wanted)
                                        : store.complete(job.state, job.folder, job.written);
      result.record = {stored.step, bytes, job.snapshot_seconds, seconds(), stored.path};
      result.left_over = std::move(stored.left_over);
    }
  } catch (const io::StorageError& error) {
    result.outcome = is_cancelled(job) ? Outcome::superseded : Outcome::failed_once;
    result.error = std::current_exception();
    result.problem = error.what();
  } catch (const std::exception& error) {  // not a disk error: another try would fail too
    result.outcome = Outcome::given_up;
    result.error = std::current_exception();
    result.problem = error.what();
  }
  return result;
}

/// True if a newer snapshot is queued, which replaces one that cannot be written.
bool CheckpointWriter::State::is_replaced(const Job& job) const {
  return std::any_of(queue.begin(), queue.end(), [&](const Job& other) {
    return other.state.step > job.state.step && holds_state(other.part);
  });
}

void CheckpointWriter::State::wait_to_retry(std::unique_lock<std::mutex>& lock, const Job& job) {
  const double known_end = end;
  while (!stop && end == known_end && !is_replaced(job) && !is_cancelled(job)) {
    const double left = next_try - base::monotonic_seconds();
    if (left <= 0) return;
    wake.wait_for(lock, std::chrono::duration<double>(left));
  }
  if (end != known_end) next_try = 0;
}

/// Writes the job. While it cannot be written, newer queued jobs replace it.
void CheckpointWriter::State::bring_to_disk(std::unique_lock<std::mutex>& lock, Job job) {
  const auto give_way = [&] {
    post({.outcome = Outcome::superseded,
          .part = job.part,
          .step = job.state.step,
          .folder = job.folder,
          .failures = failures});
  };
  for (;;) {
    if (failures > 0 && holds_state(job.part)) {
      if (!is_cancelled(job)) wait_to_retry(lock, job);
      if (!stop && is_replaced(job)) {
        give_way();
        job = std::move(queue.front());
        queue.pop_front();
        continue;
      }
    }
    if (is_cancelled(job)) return give_way();
    lock.unlock();
    Result result = attempt(job);
    lock.lock();
    const double now = base::monotonic_seconds();
    if (result.outcome == Outcome::superseded) return post(std::move(result));
    if (result.outcome == Outcome::failed_once && !holds_state(result.part))
      result.outcome = Outcome::given_up;
    if (result.outcome == Outcome::failed_once && failures++ == 0) failing_since = now;
    result.failures = failures;
    result.failing_seconds = failures == 0 ? 0 : now - failing_since;
    if (result.outcome == Outcome::failed_once) {
      // The last try is made exactly at the time to give up.
      const double last_try = std::min(end, failing_since + retries.give_up_seconds);
      const double most =
          std::isfinite(end) ? std::min(retries.most_seconds, kMaxAtEndSeconds) : retries.most_seconds;
      const double wait = std::min(std::ldexp(retries.first_seconds, std::min(failures - 1, 40)), most);
      next_try = std::min(now + wait, std::max(last_try, now));
      if (stop || now >= last_try) result.outcome = Outcome::given_up;
      result.retry_seconds = next_try - now;
    } else if (holds_state(result.part)) {
      failures = 0;
    }
    const bool over = result.outcome != Outcome::failed_once;
    post(std::move(result));
    if (over) return;
  }
}

void CheckpointWriter::State::post(Result result) {
  results.push_back(std::move(result));
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(event.get(), &one, sizeof(one));
}

void CheckpointWriter::State::serve() {
  std::unique_lock lock(mutex);
  for (;;) {
    wake.wait(lock, [this] { return stop || !queue.empty(); });
    if (queue.empty()) return;
    Job job = std::move(queue.front());
    queue.pop_front();
    bring_to_disk(lock, std::move(job));
  }
}

CheckpointWriter::CheckpointWriter(const io::CheckpointStore& store, const Retries& retries,
                                   std::function<bool()> allowed)
    : state_(std::make_shared<State>(store, retries, std::move(allowed))),
      thread_([state = state_] { state->serve(); }) {}

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

void CheckpointWriter::end_within(double seconds) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->end = std::min(state_->end, base::monotonic_seconds() + seconds);
  }
  state_->wake.notify_one();
}

void CheckpointWriter::go_on() {
  const std::lock_guard lock(state_->mutex);
  state_->end = std::numeric_limits<double>::infinity();
}

void CheckpointWriter::cancel(std::atomic<bool>& job) {
  {
    const std::lock_guard lock(state_->mutex);
    job = true;
  }
  state_->wake.notify_one();
}

void CheckpointWriter::kept_elsewhere() {
  const std::lock_guard lock(state_->mutex);
  state_->failing_since = base::monotonic_seconds();
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
  if (result.outcome != Outcome::failed_once) --state_->pending;
  return result;
}

std::size_t CheckpointWriter::pending() const {
  const std::lock_guard lock(state_->mutex);
  return state_->pending;
}

int CheckpointWriter::event_fd() const { return state_->event.get(); }

}  // namespace trainerd::core::run
