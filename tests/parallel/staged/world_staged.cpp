// Staged communicators over memory of the process, with the CPU as a device whose memory is the host's.

#include "kernels/cpu/cpu_backend.h"
#include "parallel/comm/staged/staged_communicator.h"
#include "tests/parallel/world.h"

namespace trainerd::test {

const bool kSumsInRankOrder = true;

std::unique_ptr<kernels::Backend> make_machine(base::ThreadPool& pool) {
  return std::make_unique<kernels::CpuBackend>(kernels::detect_cpu(1), pool);
}

// From the backend, so that it ends at a guard page: a piece with wrong bounds faults.
kernels::Buffer make_memory(std::int64_t bytes) {
  base::ThreadPool pool(1);
  return kernels::CpuBackend(kernels::detect_cpu(1), pool).allocate(kernels::MemoryKind::device, bytes);
}

struct World::State {
  State(std::int64_t ranks, const parallel::LocalOptions& options) : world(ranks, options) {}
  parallel::LocalWorld world;
};

World::World(std::int64_t ranks, const parallel::LocalOptions& options)
    : state_(std::make_unique<State>(ranks, options)) {}
World::~World() = default;
std::int64_t World::ranks() const { return state_->world.ranks(); }
std::unique_ptr<parallel::Communicator> World::communicator(std::int64_t rank, RankMachine& machine,
                                                            const std::vector<std::int64_t>& group_ranks,
                                                            const std::string& name,
                                                            parallel::FlightRecorder* recorder) {
  // Small slots: a few thousand elements need several.
  return parallel::make_staged(state_->world.communicator(rank, machine.backend, group_ranks, name, recorder),
                               machine.backend, {.slot_bytes = 4096});
}
void World::run(const std::function<void(std::int64_t)>& body) { state_->world.run(body); }
void World::abort(std::string_view why) { state_->world.abort(why); }

}  // namespace trainerd::test
