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

/// An operation in progress. Its events are reused when it is destroyed.
struct NcclFlight {
  OpRecord record;
  std::vector<std::int64_t> peers;  ///< world ranks of an exchange
  std::uint64_t order = 0;          ///< number in the flight recorder
  double called_at = 0;
  double begun_at = 0;   ///< start of its turn on the device, as seen by the watchdog; 0: not yet
  bool started = false;  ///< NCCL has started it, and `done` is recorded
  cudaEvent_t begun = nullptr, done = nullptr;
};

/// What the oldest unfinished operation waits for, and since when (0: its turn has not come).
struct NcclWait {
  std::string what;
  std::string group;  ///< the same on all members, and unique in the world
  std::uint64_t number = 0;
  std::vector<std::int64_t> members, peers;  ///< world ranks; `peers` of an exchange
  double since = 0;
};

/// One rank's part of one group (see NcclWorld for its properties). Calls come from one thread.
class NcclCommunicator final : public Communicator {
  using Stream = kernels::Stream;
  using Tensor = kernels::Tensor;

 public:
  NcclCommunicator(NcclRankWorld& world, std::shared_ptr<NcclLink> link, NcclGroup group,
                   kernels::Backend& backend, FlightRecorder* recorder);
  /// Waits for seconds at most. Operations that are not done by then end the world.
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

  /// Starts an operation. Does not call `act` if there are no bytes.
  std::unique_ptr<Work> start(Stream& stream, OpRecord record, std::vector<std::int64_t> peers,
                              const CommOptions& options, const Act& act);
  Flight take_flight();
  /// Removes finished operations from `flights_`. Needs the lock.
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
  kernels::Buffer barrier_;  ///< operand of a barrier's sum
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;  ///< marks the earlier work on the caller's stream
  std::uint64_t sequence_ = 0;   ///< number of collectives
  std::uint64_t exchanges_ = 0;

  std::mutex mutex_;
  std::deque<Flight> flights_;  ///< operations not known to be done
  std::mutex events_mutex_;
  std::vector<cudaEvent_t> unused_;
};

}  // namespace trainerd::parallel
