#include "core/run/worker/rank_world.h"

#include <algorithm>

#include "core/run/worker/flight_segment.h"
#include "core/train/rank_groups.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "parallel/comm/local_communicator.h"
#include "parallel/comm/nccl/nccl_plugin.h"
#include "parallel/comm/staged/staged_communicator.h"

namespace trainerd::core::run {
namespace {

// Time limit for connecting. The agents are connected by then, but a worker may need this long to start and
// allocate.
constexpr double kMeetSeconds = 300;
// Time for NCCL's watchdog to find the missing ranks in the store, where the waiting ranks have registered.
constexpr double kLateSeconds = 2;

}  // namespace

NodeRanks node_ranks(const parallel::Layout& layout, const parallel::Topology& topology, std::int64_t node) {
  // Ranks are placed node by node.
  const std::int64_t first = std::min(node * topology.devices_per_node, layout.grid.ranks());
  return {first, std::min(topology.devices_per_node, layout.grid.ranks() - first)};
}

parallel::ShmLayout shared_memory_layout(const job::JobSpec& job, const parallel::Layout& layout,
                                         const NodeRanks& here) {
  // Pipeline neighbours send one message at a time; a message longer than the ring is sent in parts.
  constexpr std::int64_t kLargestRing = std::int64_t{8} << 20;
  const std::int64_t flow =
      job.microbatch_tokens() * job.model.hidden * kernels::size_of(job.precision.compute);
  parallel::ShmLayout shared;
  shared.ranks = layout.grid.ranks();
  if (job::uses_nccl(job)) return shared;
  for (const parallel::GroupMembers& group :
       parallel::groups_begun(layout, {here.first, here.count, 1}, train::group_needs(job.model))) {
    if (group.ranks.count == 1 || !here.have_all(group.ranks)) continue;
    parallel::ShmGroup& made = shared.groups.emplace_back();
    made.name = info(group.group).name;
    made.ranks = group.ranks.list();
    if (group.group == parallel::Group::pp)
      made.ring_bytes = std::min(kLargestRing, kernels::align_up(2 * flow, 4096));
  }
  return shared;
}

RankWorld::RankWorld(const job::JobSpec& job, const parallel::Layout& layout, Options options)
    : options_(std::move(options)),
      nccl_(job::uses_nccl(job)),
      staged_(job::uses_staged(job)),
      deadline_seconds_(job.cluster.timeout_seconds),
      ranks_(layout.grid.ranks()),
      here_(options_.here),
      host_(staged_ ? std::make_unique<Host>() : nullptr) {
  if (options_.flights) {
    flights_.emplace(base::Segment::attach(std::move(options_.flights)));
    recorder_.emplace(flight_ring(*flights_, options_.rank - here_.first));
    page_ = &rank_page(*flights_, options_.rank - here_.first);
  }
  if (options_.shared)
    shared_ = std::make_unique<parallel::ShmWorld>(
        base::Segment::attach(std::move(options_.shared)), shared_memory_layout(job, layout, here_),
        options_.rank,
        parallel::ShmOptions{.deadline_seconds = deadline_seconds_, .spin_seconds = options_.spin_seconds});
  if (nccl_)
    for (const parallel::GroupMembers& group :
         parallel::groups_begun(layout, {0, ranks_, 1}, train::group_needs(job.model)))
      groups_.push_back({info(group.group).name, group.ranks.list()});
  if (options_.rendezvous.empty()) return;
  const auto endpoint = base::parse_endpoint(options_.rendezvous);
  base::check(endpoint.has_value(), "the agent gives its workers the rendezvous as host:port");
  const parallel::JobToken token(options_.token, "the agent");
  const double begin = base::monotonic_seconds();
  store_ = std::make_unique<AttemptStore>(*endpoint, token, kMeetSeconds, options_.attempt);
  if (nccl_) late_store_ = std::make_unique<AttemptStore>(*endpoint, token, kLateSeconds, options_.attempt);
  else
    gloo_ = std::make_unique<parallel::GlooWorld>(store_->keys, options_.rank,
                                                  parallel::GlooOptions{.host = options_.interface,
                                                                        .deadline_seconds = deadline_seconds_,
                                                                        .rendezvous_seconds = kMeetSeconds});
  meeting_seconds_ = base::monotonic_seconds() - begin;
}

std::unique_ptr<parallel::Communicator> RankWorld::communicator(kernels::Backend& backend,
                                                                const parallel::GroupMembers& group) {
  const double begin = base::monotonic_seconds();
  const train::Activity before = page_ != nullptr ? page_->activity() : train::Activity::none;
  if (page_ != nullptr) {
    // NCCL's first group waits for all ranks.
    const bool all = nccl_ && !staged_ && !nccl_world_ && group.ranks.count > 1;
    page_->enter(train::Activity::meet);
    page_->wait(all ? parallel::Group::world : group.group);
  }
  auto made = make_communicator(backend, group);
  if (page_ != nullptr) page_->resume(), page_->enter(before);
  meeting_seconds_ += base::monotonic_seconds() - begin;
  return made;
}

std::unique_ptr<parallel::Communicator> RankWorld::make_communicator(kernels::Backend& backend,
                                                                     const parallel::GroupMembers& group) {
  if (group.ranks.count == 1) return parallel::make_single_rank(backend);
  if (staged_) return parallel::make_staged(on_host(host_->backend, group), backend);
  if (!nccl_) return on_host(backend, group);
  if (!nccl_world_) meet_by_nccl();
  return nccl_world_->communicator(backend, group.ranks.list(), info(group.group).name, recorder());
}

std::unique_ptr<parallel::Communicator> RankWorld::on_host(kernels::Backend& backend,
                                                           const parallel::GroupMembers& group) {
  if (!here_.have_all(group.ranks)) {
    base::check(gloo_ != nullptr, "a group that crosses nodes has a rendezvous");
    return gloo_->communicator(backend, group.ranks.list(), info(group.group).name, recorder());
  }
  base::check(shared_ != nullptr, "ranks of one node share memory");
  return shared_->communicator(backend, group.ranks.list(), info(group.group).name, recorder());
}

void RankWorld::meet_by_nccl() {
  constexpr const char* kIdKey = "nccl/id";
  base::check(store_ != nullptr, "ranks that use NCCL have a rendezvous");
  const parallel::NcclPlugin plugin = parallel::open_nccl_plugin();
  parallel::Store& store = store_->keys;
  if (options_.rank == 0) store.set(kIdKey, plugin.unique_id());
  // Names the missing ranks; NCCL would not.
  parallel::meet(store, "nccl", static_cast<int>(options_.rank), static_cast<int>(ranks_), kMeetSeconds);
  parallel::NcclOptions nccl;
  nccl.device = options_.device;
  nccl.rank = options_.rank;
  nccl.ranks = ranks_;
  nccl.id = parallel::wait_for(store, kIdKey, kMeetSeconds);
  nccl.groups = groups_;
  nccl.start_seconds = kMeetSeconds;
  nccl.deadline_seconds = deadline_seconds_;
  nccl.store = &late_store_->keys;
  if (shared_) {
    nccl.ended = [this] { return shared_->ended(); };
    nccl.end = [this](std::string_view why) { shared_->abort(why); };
  }
  nccl_world_ = plugin.make_world(std::move(nccl));
}

void RankWorld::require_alive() const {
  if (nccl_world_) nccl_world_->throw_if_ended();
}

void RankWorld::reset_links(std::string_view why) {
  if (gloo_) gloo_->abort(why);
  if (nccl_world_) nccl_world_->abort(why);
  if (shared_) shared_->abort(why);
}

}  // namespace trainerd::core::run
