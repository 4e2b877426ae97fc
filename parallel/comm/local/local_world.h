#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/flight_recorder.h"
#include "parallel/comm/shm/region.h"

namespace trainerd::parallel {

struct LocalOptions {
  double deadline_seconds = 300;
  std::int64_t chunk_bytes = 256 * 1024;  ///< as in ShmGroup, for every group
  std::int64_t ring_bytes = 256 * 1024;
};

/// Ranks as threads of one process. Uses the communicators of parallel/comm/shm over private memory, without
/// polling, so that many ranks can share few cores. Outlives its communicators.
class LocalWorld {
 public:
  explicit LocalWorld(std::int64_t ranks, const LocalOptions& options = {});
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  std::int64_t ranks() const { return ranks_; }
  /// Communicator of rank `rank` in the group `name` of these world ranks. All members pass the same name and
  /// ranks. Once per rank.
  std::unique_ptr<Communicator> communicator(std::int64_t rank, kernels::Backend& backend,
                                             const std::vector<std::int64_t>& group_ranks,
                                             const std::string& name, FlightRecorder* recorder = nullptr);
  /// Calls `body(rank)` on one thread per rank, and returns when all have ended. A rank that throws ends the
  /// world with its message. Rethrows the first exception.
  void run(const std::function<void(std::int64_t)>& body);
  /// Ends every operation of every rank with CommError.
  void abort(std::string_view why);

 private:
  class Pages;
  std::int64_t ranks_;
  LocalOptions options_;
  std::unique_ptr<Pages> world_;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::vector<std::int64_t>>, std::unique_ptr<Pages>> groups_;
};

}  // namespace trainerd::parallel
