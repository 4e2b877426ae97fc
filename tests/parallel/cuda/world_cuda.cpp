// Staged communicators over memory of the process, for ranks that share this machine's CUDA devices.

#include <atomic>

#include "kernels/backend/cuda_plugin.h"
#include "kernels/cpu/cpu_backend.h"
#include "parallel/comm/local_communicator.h"
#include "parallel/comm/staged/staged_communicator.h"
#include "tests/parallel/world.h"

namespace trainerd::test {

const bool kSumsInRankOrder = true;

std::unique_ptr<kernels::Backend> make_machine(base::ThreadPool&) {
  static std::atomic<int> next = 0;
  const kernels::CudaPlugin cuda = kernels::open_cuda_plugin();
  return cuda.make_backend(next++ % cuda.device_count());
}

kernels::Buffer make_memory(std::int64_t bytes) {
  static const std::unique_ptr<kernels::Backend> backend = kernels::open_cuda_plugin().make_backend(0);
  return backend->allocate(kernels::MemoryKind::host, bytes);
}

struct World::State {
  State(std::int64_t ranks, const parallel::LocalOptions& options) : world(ranks, options) {}
  parallel::LocalWorld world;
  base::ThreadPool pool{1};
  kernels::CpuBackend host{kernels::detect_cpu(1), pool};
};

World::World(std::int64_t ranks, const parallel::LocalOptions& options)
    : state_(std::make_unique<State>(ranks, options)) {}
World::~World() = default;
std::int64_t World::ranks() const { return state_->world.ranks(); }
std::unique_ptr<parallel::Communicator> World::communicator(std::int64_t rank, RankMachine& machine,
                                                            const std::vector<std::int64_t>& group_ranks,
                                                            const std::string& name,
                                                            parallel::FlightRecorder* recorder) {
  if (group_ranks.size() == 1) return parallel::make_single_rank(machine.backend);
  return parallel::make_staged(state_->world.communicator(rank, state_->host, group_ranks, name, recorder),
                               machine.backend, {.slot_bytes = 4096});
}
void World::run(const std::function<void(std::int64_t)>& body) { state_->world.run(body); }
void World::abort(std::string_view why) { state_->world.abort(why); }

}  // namespace trainerd::test
