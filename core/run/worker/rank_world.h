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

/// The ranks of one node; they are consecutive.
struct NodeRanks {
  std::int64_t first = 0;
  std::int64_t count = 1;

  bool has(std::int64_t rank) const { return rank >= first && rank < first + count; }
  bool have_all(const parallel::RankRange& ranks) const { return has(ranks.first) && has(ranks.last()); }
};
NodeRanks node_ranks(const parallel::Layout& layout, const parallel::Topology& topology, std::int64_t node);

/// Layout of the node's shared memory: every group that is entirely on the node, with the ring size it needs;
/// with NCCL only the abort flag. Agent and workers compute it from the same layout, so they agree.
parallel::ShmLayout shared_memory_layout(const job::JobSpec& job, const parallel::Layout& layout,
                                         const NodeRanks& here);

/// Connects one rank with the others: by shared memory in groups that are entirely on its node, by Gloo in
/// the rest. On a CUDA device by NCCL, or with `staged` by shared memory and Gloo through host memory. Must
/// outlive its communicators.
class RankWorld final : public parallel::World {
 public:
  struct Options {
    std::int64_t rank = 0;
    NodeRanks here;
    base::UniqueFd shared;     ///< the node's memory; none if the node has one rank
    base::UniqueFd flights;    ///< pages and rings (flight_segment.h); may be none
    std::int64_t attempt = 1;  ///< prefixes its keys in the store
    double spin_seconds = 0;   ///< ShmOptions::spin_seconds
    std::string rendezvous;    ///< host:port of the store; empty: all ranks are here, without NCCL
    std::string token;         ///< authenticates this rank to the store
    int device = 0;            ///< number of the CUDA device
    std::string interface;     ///< at which other nodes reach this node
  };
  RankWorld(const job::JobSpec& job, const parallel::Layout& layout, Options options);

  std::unique_ptr<parallel::Communicator> communicator(kernels::Backend& backend,
                                                       const parallel::GroupMembers& group) override;
  /// Seconds spent so far on connecting to the ranks of all groups.
  double meeting_seconds() const { return meeting_seconds_; }
  /// Throws CommError if communication was aborted. With NCCL the device may then have continued with
  /// arbitrary values.
  void require_alive() const override;
  /// Closes this rank's connections: current operations fail with CommError, also at the other ranks.
  void reset_links(std::string_view why);
  /// This rank's activity page; null if there is none.
  train::RankPage* page() const { return page_; }

 private:
  std::unique_ptr<parallel::Communicator> make_communicator(kernels::Backend& backend,
                                                            const parallel::GroupMembers& group);
  std::unique_ptr<parallel::Communicator> on_host(kernels::Backend& backend,
                                                  const parallel::GroupMembers& group);
  void meet_by_nccl();
  parallel::FlightRecorder* recorder() { return recorder_ ? &*recorder_ : nullptr; }

  /// CPU backend that checks the host tensors of `staged`.
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
  std::vector<parallel::NcclGroup> groups_;  ///< groups of all ranks
  std::int64_t ranks_;
  NodeRanks here_;
  std::unique_ptr<Host> host_;
  std::unique_ptr<parallel::ShmWorld> shared_;
  /// A connection to the rendezvous, with this attempt's key prefix.
  struct AttemptStore {
    AttemptStore(const base::Endpoint& server, const parallel::JobToken& token, double deadline_seconds,
                 std::int64_t attempt)
        : tcp(server, token, deadline_seconds), keys(tcp, "attempt-" + std::to_string(attempt) + "/") {}
    parallel::TcpStore tcp;
    parallel::PrefixStore keys;
  };
  std::unique_ptr<AttemptStore> store_;
  std::unique_ptr<AttemptStore> late_store_;  ///< separate connection for NCCL's watchdog
  std::unique_ptr<parallel::GlooWorld> gloo_;
  std::unique_ptr<parallel::NcclWorld> nccl_world_;
};

}  // namespace trainerd::core::run
