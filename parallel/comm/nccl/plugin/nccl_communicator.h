#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/nccl/nccl_world.h"
#include "parallel/comm/nccl/plugin/nccl_link.h"
#include "parallel/comm/op_record.h"

namespace trainerd::parallel {

class NcclRankWorld;

/// An operation on its way. Its events are reused once it is destroyed.
struct NcclFlight {
  OpRecord record;
  std::vector<std::int64_t> peers;  ///< world ranks of an exchange
  std::uint64_t order = 0;          ///< in the flight recorder
  double called_at = 0;
  double begun_at = 0;   ///< its turn on the device, as the watchdog saw it; 0: not yet
  bool started = false;  ///< NCCL has started it: `done` is recorded
  cudaEvent_t begun = nullptr, done = nullptr;
};

/// What the oldest operation that is not done waits for, and since when (0: it is not its turn).
struct NcclWait {
  std::string what;
  std::string group;  ///< the same on all members, and no other's of the world
  std::uint64_t number = 0;
  std::vector<std::int64_t> members, peers;  ///< world ranks; `peers` of an exchange
  double since = 0;
};

/// One rank's part of one group (NcclWorld says what it claims). Calls come from one thread.
class NcclCommunicator final : public Communicator {
  using Stream = kernels::Stream;
  using Tensor = kernels::Tensor;

 public:
  NcclCommunicator(NcclRankWorld& world, std::shared_ptr<NcclLink> link, NcclGroup group,
                   kernels::Backend& backend, FlightRecorder* recorder);
  /// Waits for seconds at most; what is not done then ends the world.
  ~NcclCommunicator() override;

  std::int64_t rank() const override { return rank_; }
  std::int64_t size() const override { return static_cast<std::int64_t>(group_.ranks.size()); }
  std::unique_ptr<Work> all_reduce(Stream&, const Tensor& x, ReduceOp, const CommOptions&) override;
  std::unique_ptr<Work> all_gather(Stream&, const Tensor& x, const Tensor& out, const CommOptions&) override;
  std::unique_ptr<Work> reduce_scatter(Stream&, const Tensor& x, const Tensor& out,
                                       const CommOptions&) override;
  std::unique_ptr<Work> all_to_all(Stream&, const Tensor& x, const Tensor& out, const CommOptions&) override;
  std::unique_ptr<Work> broadcast(Stream&, const Tensor& x, std::int64_t root, const CommOptions&) override;
  std::unique_ptr<Work> barrier(Stream&, const CommOptions&) override;
  std::unique_ptr<Work> exchange(Stream&, std::span<const Transfer> sends, std::span<const Transfer> receives,
                                 const CommOptions&) override;
  void abort() override;

  // For the watchdog.
  std::string error() { return link_->error(); }
  std::optional<NcclWait> oldest();

 private:
  class NcclWork;
  using Flight = std::shared_ptr<NcclFlight>;
  using Act = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;

  /// Calls `act` unless there are no bytes.
  std::unique_ptr<Work> start(Stream& stream, OpRecord record, std::vector<std::int64_t> peers,
                              const CommOptions& options, const Act& act);
  Flight take_flight();
  /// Lets go of what is done; under the lock.
  void land(double now);
  void wait_host(const NcclFlight& flight, double deadline_seconds);
  std::string describe(const OpRecord& record) const;
  NcclWait wait_of(const NcclFlight& flight) const;
  std::int64_t world_rank(std::int64_t member) const {
    return group_.ranks[static_cast<std::size_t>(member)];
  }

  NcclRankWorld& world_;
  std::shared_ptr<NcclLink> link_;
  NcclGroup group_;
  std::int64_t rank_ = 0;
  FlightRecorder* recorder_;
  kernels::Buffer barrier_;  ///< what a barrier sums
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;  ///< what was on the caller's stream
  std::uint64_t sequence_ = 0;   ///< of collectives
  std::uint64_t exchanges_ = 0;

  std::mutex mutex_;
  std::deque<Flight> flights_;  ///< not done yet, as far as was looked
  std::mutex events_mutex_;
  std::vector<cudaEvent_t> unused_;
};

}  // namespace trainerd::parallel
