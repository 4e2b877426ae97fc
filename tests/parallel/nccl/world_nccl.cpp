// Communicators over NCCL's stand-in: a separate world per group of a test, with one device per rank.

#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "parallel/comm/local_communicator.h"
#include "tests/parallel/nccl/nccl_ranks.h"
#include "tests/parallel/nccl/stand_in_backend.h"

namespace trainerd::test {

const bool kSumsInRankOrder = false;

std::unique_ptr<kernels::Backend> make_machine(base::ThreadPool& pool) {
  return std::make_unique<StandInBackend>(pool);
}

kernels::Buffer make_memory(std::int64_t bytes) {
  base::ThreadPool pool(1);
  return kernels::CpuBackend(kernels::detect_cpu(1), pool).allocate(kernels::MemoryKind::device, bytes);
}

namespace {

/// A communicator that owns its world.
class Owned final : public parallel::Communicator {
 public:
  Owned(std::unique_ptr<parallel::NcclWorld> world, std::unique_ptr<parallel::Communicator> inner)
      : world_(std::move(world)), inner_(std::move(inner)) {}
  using Options = parallel::CommOptions;
  using WorkPtr = std::unique_ptr<parallel::Work>;
  std::int64_t rank() const override { return inner_->rank(); }
  std::int64_t size() const override { return inner_->size(); }
  WorkPtr all_reduce(kernels::Stream& s, const kernels::Tensor& x, parallel::ReduceOp op,
                     const Options& o) override {
    return inner_->all_reduce(s, x, op, o);
  }
  WorkPtr all_gather(kernels::Stream& s, const kernels::Tensor& x, const kernels::Tensor& out,
                     const Options& o) override {
    return inner_->all_gather(s, x, out, o);
  }
  WorkPtr reduce_scatter(kernels::Stream& s, const kernels::Tensor& x, const kernels::Tensor& out,
                         const Options& o) override {
    return inner_->reduce_scatter(s, x, out, o);
  }
  WorkPtr all_to_all(kernels::Stream& s, const kernels::Tensor& x, const kernels::Tensor& out,
                     const Options& o) override {
    return inner_->all_to_all(s, x, out, o);
  }
  WorkPtr broadcast(kernels::Stream& s, const kernels::Tensor& x, std::int64_t root,
                    const Options& o) override {
    return inner_->broadcast(s, x, root, o);
  }
  WorkPtr barrier(kernels::Stream& s, const Options& o) override { return inner_->barrier(s, o); }
  WorkPtr exchange(kernels::Stream& s, std::span<const parallel::Transfer> sends,
                   std::span<const parallel::Transfer> receives, const Options& o) override {
    return inner_->exchange(s, sends, receives, o);
  }
  void abort() override { inner_->abort(); }

 private:
  std::unique_ptr<parallel::NcclWorld> world_;
  std::unique_ptr<parallel::Communicator> inner_;
};

}  // namespace

struct World::State {
  std::int64_t ranks = 0;
  parallel::LocalOptions options;
  End end;
  MapStore store;
  std::mutex mutex;
  std::map<std::pair<std::string, std::vector<std::int64_t>>, std::string> ids;
};

World::World(std::int64_t ranks, const parallel::LocalOptions& options) : state_(std::make_unique<State>()) {
  state_->ranks = ranks;
  state_->options = options;
}
World::~World() = default;
std::int64_t World::ranks() const { return state_->ranks; }

std::unique_ptr<parallel::Communicator> World::communicator(std::int64_t rank, RankMachine& machine,
                                                            const std::vector<std::int64_t>& group_ranks,
                                                            const std::string& name,
                                                            parallel::FlightRecorder* recorder) {
  const auto n = static_cast<std::int64_t>(group_ranks.size());
  const std::int64_t place = std::find(group_ranks.begin(), group_ranks.end(), rank) - group_ranks.begin();
  base::check(place < n, "a rank makes communicators of its own groups");
  std::string id;
  {
    const std::lock_guard lock(state_->mutex);
    std::string& made = state_->ids[{name, group_ranks}];
    if (made.empty()) made = parallel::nccl_unique_id();
    id = made;
  }
  std::vector<std::int64_t> members;
  for (std::int64_t r = 0; r < n; ++r) members.push_back(r);
  parallel::NcclOptions options = nccl_options(place, n, id, state_->end, &state_->store);
  options.deadline_seconds = state_->options.deadline_seconds;
  if (n == 1) return parallel::make_single_rank(machine.backend);
  options.groups = {{name, members}};
  auto world = parallel::make_nccl_world(options);
  auto inner = world->communicator(machine.backend, members, name, recorder);
  return std::make_unique<Owned>(std::move(world), std::move(inner));
}
void World::run(const std::function<void(std::int64_t)>& body) {
  run_ranks(state_->ranks, state_->end, body);
}
void World::abort(std::string_view why) { state_->end.report(why); }

}  // namespace trainerd::test
