#include "core/run/agent/durable_copier.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "io/checkpoint/files.h"
#include "io/checkpoint/tiers.h"
#include "io/hash/hash.h"
#include "io/storage/file_errors.h"
#include "io/storage/memory_file.h"
#include "io/text/text.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {
namespace {

/// Thrown when the job is dropped while it is worked on.
struct Dropped {};
/// Thrown when the run's directory no longer holds the checkpoint.
struct SourceGone {};

template <class Read>
auto from_source(const Read& read) {
  try {
    return read();
  } catch (const io::StorageError& error) {
    if (io::is_absence(error.error_number)) throw SourceGone{};
    throw;
  }
}

}  // namespace

struct DurableCopier::State {
  State(const io::CheckpointStore& s, Options o)
      : source(s), options(std::move(o)), event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {
    if (!event) throw base::device_error("cannot make an eventfd: " + base::errno_text(errno));
  }

  void serve();
  void work(std::unique_lock<std::mutex>& lock, const Job& job);
  Result attempt(const Job& job);
  void copy_shards(const Job& job, Result& result);
  void complete(const Job& job, Result& result);
  void tag(const Job& job);
  io::CheckpointStore tier();
  void pace(std::int64_t bytes);
  void post(Result result);

  io::CheckpointStore source;
  Options options;
  base::UniqueFd event;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Job> queue;
  std::deque<Result> results;
  std::optional<io::CheckpointStore> open;  ///< the tier, once opened; none after a job was dropped
  std::string current;                      ///< folder of the current job
  bool dropped = false;                     ///< the current job is dropped
  bool stop = false;
  double next_send = 0;              ///< monotonic time of the next piece, with a rate limit
  double active_at = 0;              ///< monotonic time of the current job's last activity
  std::optional<Result> unreported;  ///< result to report if the current job hangs
  bool claimed = false;              ///< used by the thread only
};

io::CheckpointStore DurableCopier::State::tier() {
  const std::lock_guard lock(mutex);
  if (dropped || stop) throw Dropped{};
  if (!open) open = options.open();
  return *open;
}

/// Waits until the next piece may be sent. Called by several threads.
void DurableCopier::State::pace(std::int64_t bytes) {
  std::unique_lock lock(mutex);
  const double now = base::monotonic_seconds(), begin = std::max(now, next_send);
  if (options.rate_bytes_per_second > 0)
    next_send = begin + static_cast<double>(bytes) / options.rate_bytes_per_second;
  active_at = begin;
  wake.wait_for(lock, std::chrono::duration<double>(begin - now), [this] { return dropped || stop; });
  while (!dropped && !stop && base::monotonic_seconds() < begin)
    wake.wait_for(lock, std::chrono::duration<double>(begin - base::monotonic_seconds()));
  if (dropped || stop) throw Dropped{};
}

void DurableCopier::State::copy_shards(const Job& job, Result& result) {
  const io::CheckpointStore to = tier();
  if (!options.owner.empty() && !claimed) {
    io::claim_tier(*to.storage(), options.owner);
    claimed = true;
  }
  const io::Pace paced = [this](std::int64_t bytes) { pace(bytes); };
  const std::shared_ptr<io::Storage> from = source.folder(job.folder);
  for (std::int64_t i = 0; i < job.ranks; ++i) {
    const std::string file = io::shard_file(job.first_rank + i);
    if (job.shards.empty()) {
      const auto shard = from_source([&] { return from->open(file); });
      result.bytes += to.copy_shard(job.target, file, *shard, paced);
      continue;
    }
    const io::ShardContent& shard = job.shards.at(static_cast<std::size_t>(i));
    result.bytes += to.copy_shard(job.target, file, io::MemoryFile(shard.bytes), paced);
    result.written.push_back(
        {{file, static_cast<std::int64_t>(shard.bytes.size()), io::xxh3_hex(shard.bytes)}, shard.slices});
  }
}

void DurableCopier::State::complete(const Job& job, Result& result) {
  const std::string manifest = !job.manifest.empty() ? job.manifest : from_source([&] {
    return io::read_text(*source.folder(job.folder), io::kManifestFile);
  });
  const io::CheckpointStore to = tier();
  io::StoredCheckpoint stored = to.complete_copy(job.target, manifest);
  result.path = std::move(stored.path);
  result.left_over = std::move(stored.left_over);
  try {  // it may have been tagged during the copy
    if (source.folder(job.folder)->exists(io::kGoodFile)) to.tag_good(job.step);
  } catch (const base::CheckpointError& error) {
    result.problem = error.what();
  }
}

/// Tags the tier's newest checkpoint of the step if it is the same as the source's: another attempt of the
/// step may be bad.
void DurableCopier::State::tag(const Job& job) {
  const auto marker = [&](const io::CheckpointStore& store) -> std::string {
    for (const io::StoredCheckpoint& stored : store.list())
      if (stored.step == job.step) return io::read_text(*store.folder(stored.name()), io::kMarkerFile);
    return "";
  };
  const io::CheckpointStore to = tier();
  const std::string there = marker(to);
  if (!there.empty() && there == marker(source)) to.tag_good(job.step);
}

DurableCopier::Result DurableCopier::State::attempt(const Job& job) {
  Result result{.part = job.part,
                .step = job.step,
                .folder = job.folder,
                .ranks = job.ranks,
                .from_memory = !job.shards.empty()};
  try {
    switch (job.part) {
      case Part::shards: copy_shards(job, result); break;
      case Part::completion: complete(job, result); break;
      case Part::tag: tag(job); break;
    }
  } catch (const Dropped&) {
    result.outcome = Outcome::dropped;
  } catch (const SourceGone&) {
    result.outcome = Outcome::gone;
  } catch (const std::exception& error) {
    result.outcome = Outcome::failed;
    result.problem = error.what();
  }
  return result;
}

void DurableCopier::State::work(std::unique_lock<std::mutex>& lock, const Job& job) {
  current = job.folder;
  dropped = false;
  unreported = {
      .outcome = Outcome::failed, .part = job.part, .step = job.step, .folder = job.folder, .failures = 1};
  for (int failures = 1;; ++failures) {
    active_at = base::monotonic_seconds();
    lock.unlock();
    Result result = attempt(job);
    lock.lock();
    if (dropped && result.outcome != Outcome::copied) {
      result.outcome = Outcome::dropped;
      open.reset();  // its storage was stopped
    }
    if (result.outcome != Outcome::failed || job.part == Part::tag || stop) {
      post(std::move(result));
      break;
    }
    const double wait =
        std::min(options.most_seconds, std::ldexp(options.first_seconds, std::min(failures - 1, 20)));
    result.failures = failures;
    result.retry_seconds = wait;
    post(std::move(result));
    active_at = base::monotonic_seconds() + wait;
    wake.wait_for(lock, std::chrono::duration<double>(wait), [this] { return dropped || stop; });
  }
  unreported.reset();
  if (dropped) open.reset();
  current.clear();
}

void DurableCopier::State::post(Result result) {
  results.push_back(std::move(result));
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(event.get(), &one, sizeof(one));
}

void DurableCopier::State::serve() {
  std::unique_lock lock(mutex);
  for (;;) {
    wake.wait(lock, [this] { return stop || !queue.empty(); });
    if (stop) return;
    const Job job = std::move(queue.front());
    queue.pop_front();
    work(lock, job);
  }
}

DurableCopier::DurableCopier(const io::CheckpointStore& source, Options options)
    : state_(std::make_shared<State>(source, std::move(options))),
      thread_([state = state_] { state->serve(); }) {}

DurableCopier::~DurableCopier() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
    if (state_->open) state_->open->storage()->stop();
  }
  state_->wake.notify_all();
  thread_.detach();
}

void DurableCopier::enqueue(Job job) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->queue.push_back(std::move(job));
  }
  state_->wake.notify_all();
}

void DurableCopier::drop(const std::string& folder) {
  {
    const std::lock_guard lock(state_->mutex);
    auto& queue = state_->queue;
    for (const Job& job : queue)
      if (job.folder == folder)
        state_->post({.outcome = Outcome::dropped,
                      .part = job.part,
                      .step = job.step,
                      .folder = folder,
                      .from_memory = !job.shards.empty()});
    std::erase_if(queue, [&](const Job& job) { return job.folder == folder; });
    if (state_->current == folder) {
      state_->dropped = true;
      if (state_->open) state_->open->storage()->stop();
    }
  }
  state_->wake.notify_all();
}

std::optional<DurableCopier::Result> DurableCopier::take() {
  const std::lock_guard lock(state_->mutex);
  if (state_->results.empty()) return std::nullopt;
  std::uint64_t one = 0;
  [[maybe_unused]] const ssize_t n = ::read(state_->event.get(), &one, sizeof(one));
  Result result = std::move(state_->results.front());
  state_->results.pop_front();
  return result;
}

std::optional<DurableCopier::Result> DurableCopier::hung(double seconds) {
  const std::lock_guard lock(state_->mutex);
  const double silent = base::monotonic_seconds() - state_->active_at;
  if (!state_->unreported || silent < seconds) return std::nullopt;
  auto result = std::exchange(state_->unreported, std::nullopt);
  result->problem = "nothing has come of it for " + io::short_duration(silent) +
                    ": a call of the file system or store does not return";
  return result;
}

int DurableCopier::event_fd() const { return state_->event.get(); }

}  // namespace trainerd::core::run
