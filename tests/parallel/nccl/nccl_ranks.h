#pragma once

// Ranks of NcclWorlds as threads of one process, and their shared state outside of NCCL.

#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "kernels/base/error.h"
#include "parallel/comm/nccl/plugin/make_world.h"
#include "tests/parallel/world.h"

namespace trainerd::test {

class MapStore final : public parallel::Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
  }
  std::optional<std::string> get(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto it = values_.find(key);
    return it == values_.end() ? std::nullopt : std::optional(it->second);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

/// The reason why the world has ended, shared by all its ranks.
class End {
 public:
  void report(std::string_view why) {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why;
  }
  std::string why() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  mutable std::mutex mutex_;
  std::string why_;
};

/// Runs `body(rank)` on one thread per rank. A rank that throws ends the world. Rethrows the first exception
/// when all ranks have ended.
inline void run_ranks(std::int64_t ranks, End& end, const std::function<void(std::int64_t)>& body) {
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        end.report("rank " + std::to_string(rank) + " failed: " + error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

/// A rank's options in a world of `ranks`; `id` is the world's.
inline parallel::NcclOptions nccl_options(std::int64_t rank, std::int64_t ranks, const std::string& id,
                                          End& end, MapStore* store) {
  parallel::NcclOptions options;
  options.device = static_cast<int>(rank);
  options.rank = rank;
  options.ranks = ranks;
  options.id = id;
  options.start_seconds = options.deadline_seconds = 60;
  options.poll_seconds = 0.01;
  options.store = store;
  options.ended = [&end] { return end.why(); };
  options.end = [&end](std::string_view why) { end.report(why); };
  return options;
}

}  // namespace trainerd::test
