#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/job.h"
#include "core/rank/device_rank.h"
#include "core/train/rank_page.h"
#include "kernels/base/fd.h"
#include "kernels/base/socket.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu_backend.h"
#include "parallel/comm/flight_recorder.h"
#include "parallel/comm/gloo/gloo_world.h"
#include "parallel/comm/nccl/nccl_world.h"
#include "parallel/comm/rendezvous/tcp_store.h"
#include "parallel/comm/shm/shm_world.h"
#include "parallel/group/world.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::run {

/// The ranks of one node: they follow each other.
struct NodeRanks {
  std::int64_t first = 0;
  std::int64_t count = 1;

  bool has(std::int64_t rank) const { return rank >= first && rank < first + count; }
  bool have_all(const parallel::RankRange& ranks) const { return has(ranks.first) && has(ranks.last()); }
};
NodeRanks node_ranks(const parallel::Layout& layout, const parallel::Topology& topology, std::int64_t node);

/// What the ranks of a node share in memory: every group of the layout that is all on the node, sized for
/// what it moves; with NCCL the news of its end alone. Agent and workers work it out alike, from one layout.
parallel::ShmLayout shared_memory_layout(const job::JobSpec& job, const parallel::Layout& layout,
                                         const NodeRanks& here);

/// How one rank reaches the others: by shared memory in groups that are all on its node, by Gloo in groups
/// that are not, and on a CUDA device by NCCL, or by the former two with `staged` before them. Outlives its
/// communicators.
class RankWorld final : public parallel::World {
 public:
  struct Options {
    std::int64_t rank = 0;
    NodeRanks here;
    base::UniqueFd shared;     ///< the node's memory; none for a rank alone on it
    base::UniqueFd flights;    ///< where this rank's work is shown (flight_segment.h), if anywhere
    std::int64_t attempt = 1;  ///< of the run: its keys of the store are its own
    double spin_seconds = 0;   ///< of ShmOptions
    std::string rendezvous;    ///< host:port of the store; empty: all ranks are here, and NCCL is not used
    std::string token;         ///< by which the store knows this rank
    int device = 0;            ///< a CUDA device's number
    std::string interface;     ///< by which the other nodes reach this one
  };
  RankWorld(const job::JobSpec& job, const parallel::Layout& layout, Options options);

  std::unique_ptr<parallel::Communicator> communicator(kernels::Backend& backend,
                                                       const parallel::GroupMembers& group) override;
  /// Spent on meeting the ranks of all groups so far.
  double meeting_seconds() const { return meeting_seconds_; }
  /// With NCCL the device may have gone on with any numbers.
  void require_alive() const override;
  /// Closes this rank's connections: operations under way fail with CommError, at the other ranks too.
  void reset_links(std::string_view why);
  /// Where this rank shows what it does; null: nowhere.
  train::RankPage* page() const { return page_; }

 private:
  std::unique_ptr<parallel::Communicator> make_communicator(kernels::Backend& backend,
                                                            const parallel::GroupMembers& group);
  std::unique_ptr<parallel::Communicator> on_host(kernels::Backend& backend,
                                                  const parallel::GroupMembers& group);
  void meet_by_nccl();
  parallel::FlightRecorder* recorder() { return recorder_ ? &*recorder_ : nullptr; }

  /// What host tensors of `staged` are checked by.
  struct Host {
    base::ThreadPool pool{1};
    kernels::CpuBackend backend{kernels::detect_cpu(1), pool};
  };
  Options options_;
  std::optional<base::Segment> flights_;
  train::RankPage* page_ = nullptr;
  std::optional<parallel::FlightRecorder> recorder_;
  double meeting_seconds_ = 0;
  bool nccl_, staged_;
  double deadline_seconds_;
  std::vector<parallel::NcclGroup> groups_;  ///< of all ranks
  std::int64_t ranks_;
  NodeRanks here_;
  std::unique_ptr<Host> host_;
  std::unique_ptr<parallel::ShmWorld> shared_;
  /// A connection to the rendezvous, with the keys of this attempt.
  struct AttemptStore {
    AttemptStore(const base::Endpoint& server, const parallel::JobToken& token, double deadline_seconds,
                 std::int64_t attempt)
        : tcp(server, token, deadline_seconds), keys(tcp, "attempt-" + std::to_string(attempt) + "/") {}
    parallel::TcpStore tcp;
    parallel::PrefixStore keys;
  };
  std::unique_ptr<AttemptStore> store_;
  std::unique_ptr<AttemptStore> late_store_;  ///< the watchdog's own connection
  std::unique_ptr<parallel::GlooWorld> gloo_;
  std::unique_ptr<parallel::NcclWorld> nccl_world_;
};

}  // namespace trainerd::core::run
