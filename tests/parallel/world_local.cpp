// The world of ranks on CPUs over memory of the process.

#include "kernels/cpu/cpu_backend.h"
#include "tests/parallel/world.h"

namespace trainerd::test {

const bool kSumsInRankOrder = true;

std::unique_ptr<kernels::Backend> make_machine(base::ThreadPool& pool) {
  return std::make_unique<kernels::CpuBackend>(kernels::detect_cpu(1), pool);
}

kernels::Buffer make_memory(std::int64_t bytes) {
  auto* memory = new std::byte[static_cast<std::size_t>(bytes) + 64]();
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return {memory + (64 - address % 64) % 64, bytes, [memory] { delete[] memory; }};
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
  return state_->world.communicator(rank, machine.backend, group_ranks, name, recorder);
}
void World::run(const std::function<void(std::int64_t)>& body) { state_->world.run(body); }
void World::abort(std::string_view why) { state_->world.abort(why); }

}  // namespace trainerd::test
