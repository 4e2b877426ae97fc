#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/flight_recorder.h"
#include "parallel/comm/rendezvous/store.h"

namespace trainerd::parallel {

/// A group, by name and by world ranks in the order of its group ranks. Groups of the same name have no rank
/// in common.
struct NcclGroup {
  std::string name;
  std::vector<std::int64_t> ranks;
};

struct NcclOptions {
  int device = 0;  ///< of this process; other ranks of the world use other devices
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
  std::string id;                 ///< NcclPlugin::unique_id of one rank, the same on all ranks
  std::vector<NcclGroup> groups;  ///< all groups of the world, the same list on every rank
  double start_seconds = 300;     ///< time limit for all ranks to join
  double deadline_seconds = 300;  ///< longest time for an operation, from its turn on the device
  double poll_seconds = 0.05;     ///< interval of the watchdog
  /// Ranks write here what they wait for, so that errors can name the missing ranks. A new world needs a new
  /// store. Null: missing ranks are not named. Its calls may block for seconds at most.
  Store* store = nullptr;
  /// How this rank learns that the world ended outside NCCL, and how it reports an end. `ended` returns the
  /// reason (empty: not ended). `end` reports one. Called from any thread; either may be empty.
  std::function<std::string()> ended;
  std::function<void(std::string_view)> end;
};

/// One rank's part of a world of ranks with one CUDA device each: NCCL's communicator over all ranks, and one
/// split from it per group. Outlives its communicators.
///
/// Properties of its communicators:
/// - Each has a stream of its own, ordered after the caller's by events. The host blocks only while NCCL
///   starts an operation. CommOptions::progress has no effect. Operations on one communicator run in the
///   order of their calls, exchanges too: a send may wait for its receiver, and later operations wait for the
///   send.
/// - Sums of fp32, fp64 and integers are made in that dtype. A wider `accumulate` throws std::logic_error.
///   bf16 and fp16 summands are added in fp32, but a partial sum is rounded before it is sent to the next
///   rank: up to one rounding per rank instead of one in total.
/// - NCCL chooses the order of summands. It depends on ranks, devices, links, sizes, the library and its
///   environment variables. It is the same in every run, but is not rank order. all_reduce need not have the
///   same bits as reduce_scatter and all_gather.
/// - A maximum ignores a NaN that is not in all summands.
/// - Ranks that call different operations are not detected: they wait until the deadline. all_to_all cannot
///   be in place. A Work destroyed without a wait gives up nothing: its receives are filled.
/// - A watchdog checks for errors and deadlines, ends the world (ncclCommAbort) and names the operation. Work
///   on the device's streams then completes with undefined contents, so call `throw_if_ended` before using
///   the results of a step.
///
/// A later change could register the buckets, whose memory is fixed for the run, with NCCL (ncclCommRegister,
/// or windows of symmetric memory). That memory must come from ncclMemAlloc, chosen in Backend::allocate.
class NcclWorld {
 public:
  virtual ~NcclWorld() = default;
  /// Makes the communicator of a group of NcclOptions, once per group. Only a world of one rank has groups of
  /// one. The backend's device is the world's.
  virtual std::unique_ptr<Communicator> communicator(kernels::Backend& backend,
                                                     const std::vector<std::int64_t>& group_ranks,
                                                     const std::string& name,
                                                     FlightRecorder* recorder = nullptr) = 0;
  /// Ends every operation of this rank, from any thread, and reports to NcclOptions::end.
  virtual void abort(std::string_view why) = 0;
  /// Throws CommError when the world has ended.
  virtual void throw_if_ended() const = 0;
};

}  // namespace trainerd::parallel
