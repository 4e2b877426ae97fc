#pragma once

// The world that an executable's communicator tests run on: ranks as threads of one process. One of the
// world_*.cpp implements it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/base/thread_pool.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/flight_recorder.h"
#include "parallel/comm/local/local_world.h"

namespace trainerd::test {

/// True if sums are made in rank order on every rank.
extern const bool kSumsInRankOrder;

std::unique_ptr<kernels::Backend> make_machine(base::ThreadPool& pool);
/// Zeroed memory, accessible to host and device, aligned to 64 bytes.
kernels::Buffer make_memory(std::int64_t bytes);

/// A rank's backend and stream; made on the rank's own thread.
struct RankMachine {
  base::ThreadPool pool{1};
  std::unique_ptr<kernels::Backend> owned = make_machine(pool);
  kernels::Backend& backend = *owned;
  std::unique_ptr<kernels::Stream> stream = backend.make_stream("comm", nullptr);
  std::unique_ptr<kernels::Event> mark = backend.make_event();

  /// Waits until all work on the stream is complete and the host may read its results.
  void sync() {
    backend.record(*stream, *mark);
    backend.wait_host(*mark);
  }
};

/// LocalWorld's interface, with its options as far as this world supports them.
class World {
 public:
  explicit World(std::int64_t ranks, const parallel::LocalOptions& options = {});
  ~World();

  std::int64_t ranks() const;
  std::unique_ptr<parallel::Communicator> communicator(std::int64_t rank, RankMachine& machine,
                                                       const std::vector<std::int64_t>& group_ranks,
                                                       const std::string& name,
                                                       parallel::FlightRecorder* recorder = nullptr);
  void run(const std::function<void(std::int64_t)>& body);
  void abort(std::string_view why);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::test
