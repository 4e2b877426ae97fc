#include "core/train/batch_loader.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::core::train {
namespace {

constexpr std::chrono::seconds kPatience{1};

}  // namespace

struct BatchLoader::State {
  struct Slot {
    HostBatch batch;
    std::exception_ptr error;
  };

  Options options;
  ReadSample read;
  std::vector<Slot> slots;
  std::int64_t total = 0;  ///< number of microbatches of all passes
  struct Begin {
    std::int64_t microbatch, sample;
  };
  std::vector<Begin> begins;  ///< by `Options::passes`

  HostSample sample;
  std::int64_t told = 0;  ///< number of microbatches whose samples were announced

  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t made = 0, taken = 0;  ///< number of microbatches since the first pass
  bool stop = false, ended = false;

  Slot& slot(std::int64_t i) {
    return slots[static_cast<std::size_t>(i % static_cast<std::int64_t>(slots.size()))];
  }
  /// Where microbatch `i` is.
  struct Place {
    const BatchRequest& request;
    std::int64_t global, first_sample;  ///< of its pass
  };
  Place place(std::int64_t i) const {
    std::size_t which = begins.size() - 1;
    while (begins[which].microbatch > i) --which;
    const Passes& passes = options.passes[which];
    const auto each = static_cast<std::int64_t>(passes.requests.size());
    const std::int64_t in_passes = i - begins[which].microbatch;
    return {passes.requests[static_cast<std::size_t>(in_passes % each)], passes.samples,
            begins[which].sample + in_passes / each * passes.samples};
  }
  /// Announces the samples of microbatches up to `i + announced`.
  void announce(std::int64_t i) {
    if (!options.announce) return;
    for (; told < std::min(total, i + 1 + options.announced); ++told) {
      const Place next = place(told);
      if (!next.request.tokens && !options.shape.reads_always()) continue;
      const std::int64_t first = options.shape.first_sample(next.request.microbatch);
      const std::int64_t end = std::min(first + options.shape.micro, next.global);
      for (std::int64_t number = first; number < end; ++number) options.announce(next.first_sample + number);
    }
  }
  /// Makes microbatch `i` in its slot.
  void make(std::int64_t i) {
    const Place at = place(i);
    Slot& to = slot(i);
    to.error = nullptr;
    try {
      if (options.ahead > 0) announce(i);
      BatchShape shape = options.shape;
      shape.global = at.global;
      make_batch(
          shape, at.request,
          [&](std::int64_t number, HostSample& into) { read(at.first_sample + number, into); }, sample,
          to.batch);
    } catch (...) {
      to.error = std::current_exception();
    }
  }
};

BatchLoader::BatchLoader(Options options, ReadSample read) : state_(std::make_shared<State>()) {
  State& state = *state_;
  std::int64_t samples = 0;
  for (const Passes& passes : options.passes) {
    state.begins.push_back({state.total, samples});
    state.total += passes.count * static_cast<std::int64_t>(passes.requests.size());
    samples += passes.count * passes.samples;
  }
  // One more than `ahead`: the microbatch in use.
  state.slots.resize(static_cast<std::size_t>(std::min(options.ahead, state.total) + 1));
  state.options = std::move(options);
  state.read = std::move(read);
  state.ended = state.options.ahead == 0 || state.total == 0;
  if (!state.ended) std::thread([shared = state_] { fill(*shared); }).detach();
}

BatchLoader::~BatchLoader() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatience, [this] { return state_->ended; });
}

void BatchLoader::fill(State& state) {
  std::unique_lock lock(state.mutex);
  const auto room = [&] { return state.stop || state.made - state.taken < state.options.ahead; };
  while (state.made < state.total) {
    state.changed.wait(lock, room);
    if (state.stop) break;
    lock.unlock();
    state.make(state.made);
    lock.lock();
    ++state.made;
    state.changed.notify_all();
  }
  state.ended = true;
  state.changed.notify_all();
}

const HostBatch& BatchLoader::next(const BatchRequest& request) {
  State& state = *state_;
  const std::int64_t i = state.taken;
  base::check(i < state.total && state.place(i).request == request,
              "microbatches are asked for in the order of a pass");
  if (state.options.ahead == 0) {
    state.make(i);
    ++state.taken;
  } else {
    std::unique_lock lock(state.mutex);
    state.changed.wait(lock, [&] { return state.made > i; });
    ++state.taken;
    state.changed.notify_all();
  }
  if (state.slot(i).error) std::rethrow_exception(state.slot(i).error);
  return state.slot(i).batch;
}

}  // namespace trainerd::core::train
