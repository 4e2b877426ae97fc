#include "core/supervise/rank_world.h"

#include <algorithm>

#include "core/train/rank_groups.h"
#include "kernels/base/error.h"
#include "parallel/local/local_communicator.h"

namespace trainerd::core {
namespace {

// All agents have met when workers start: this long one may take to start and to make its memory.
constexpr double kMeetSeconds = 300;

}  // namespace

bool NodeRanks::have_all(const std::vector<std::int64_t>& ranks) const {
  return std::all_of(ranks.begin(), ranks.end(), [&](std::int64_t rank) { return has(rank); });
}

NodeRanks node_ranks(const parallel::Layout& layout, const parallel::Topology& topology, std::int64_t node) {
  // Placement fills node after node.
  const std::int64_t first = std::min(node * topology.devices_per_node, layout.grid.ranks());
  return {first, std::min(topology.devices_per_node, layout.grid.ranks() - first)};
}

parallel::ShmLayout shared_memory_layout(const JobSpec& job, const parallel::Layout& layout, const NodeRanks& here) {
  // Pipeline neighbours send one flow at a time; a longer message than its ring is sent in parts.
  constexpr std::int64_t kLargestRing = std::int64_t{8} << 20;
  const std::int64_t flow = job.batch.micro * job.model.seq_len * job.model.hidden * kernels::size_of(job.precision.compute);
  parallel::ShmLayout shared;
  shared.ranks = layout.grid.ranks();
  for (const GroupRanks& group : all_groups(layout, job.model)) {
    if (group.ranks.size() == 1 || !here.have_all(group.ranks)) continue;
    parallel::ShmGroup& made = shared.groups.emplace_back();
    made.name = group.name;
    made.ranks = group.ranks;
    if (group.name == "pp") made.ring_bytes = std::min(kLargestRing, kernels::align_up(2 * flow, 4096));
  }
  return shared;
}

RankWorld::RankWorld(const JobSpec& job, const parallel::Layout& layout, Options options) : here_(options.here) {
  if (options.shared)
    shared_ = std::make_unique<parallel::ShmWorld>(base::Segment::attach(std::move(options.shared)),
                                                   shared_memory_layout(job, layout, here_), options.rank,
                                                   parallel::ShmOptions{.spin_seconds = options.spin_seconds});
  if (options.rendezvous.empty()) return;
  const auto endpoint = base::parse_endpoint(options.rendezvous);
  base::check(endpoint.has_value(), "the agent gives its workers the rendezvous as host:port");
  store_ = std::make_unique<parallel::TcpStore>(*endpoint, kMeetSeconds);
  gloo_ = std::make_unique<parallel::GlooWorld>(
      *store_, options.rank, parallel::GlooOptions{.host = options.interface, .rendezvous_seconds = kMeetSeconds});
}

std::unique_ptr<parallel::Communicator> RankWorld::communicator(kernels::Backend& backend, const std::string& name,
                                                                const std::vector<std::int64_t>& members) {
  if (members.size() == 1) return parallel::make_single_rank(backend);
  if (!here_.have_all(members)) {
    base::check(gloo_ != nullptr, "a group that crosses nodes has a rendezvous");
    return gloo_->communicator(backend, members, name);
  }
  base::check(shared_ != nullptr, "ranks of one node share memory");
  return shared_->communicator(backend, members, name);
}

}  // namespace trainerd::core
