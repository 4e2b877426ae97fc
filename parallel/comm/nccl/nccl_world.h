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

/// A group by name and world ranks, in the order of its own ranks. Groups of one name have no rank in common.
struct NcclGroup {
  std::string name;
  std::vector<std::int64_t> ranks;
};

struct NcclOptions {
  int device = 0;  ///< of this process; no other rank of the world has it
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
  std::string id;                 ///< NcclPlugin::unique_id of one rank, the same on all
  std::vector<NcclGroup> groups;  ///< of the whole world, the same list on every rank
  double start_seconds = 300;     ///< until all ranks have joined
  double deadline_seconds = 300;  ///< longest time that an operation takes from its turn on the device
  double poll_seconds = 0.05;     ///< between two looks of the watchdog
  /// Where waiting ranks write what they wait for, so that the missing ranks can be named; a world that is
  /// made anew has another. Null: missing ranks cannot be named. Its calls block for seconds at most.
  Store* store = nullptr;
  /// How this rank's world learns of an end outside NCCL and reports one: `ended` returns the reason (empty:
  /// it goes on), `end` reports it. Called from any thread; either may be empty.
  std::function<std::string()> ended;
  std::function<void(std::string_view)> end;
};

/// One rank's part of a world of ranks with a CUDA device each: NCCL's communicator over all of them, and one
/// split from it for every group. Outlives its communicators.
///
/// What its communicators claim:
/// - Each has a stream of its own, ordered by events after the caller's; nothing blocks the host but NCCL's
/// own start of an
///   operation. CommOptions::progress has no meaning. Operations on one communicator run in the order they
///   were called, exchanges too: a send may wait for its receiver, and what was called later waits behind it.
/// - Sums of fp32, fp64 and integers are made in that dtype; `accumulate` of more than that is refused
///   (std::logic_error). bf16 summands are added in fp32, but a partial sum that goes from rank to rank is
///   rounded to bf16: up to one rounding for each rank, not one in all.
/// - The order of summands is NCCL's. Ranks, devices, links, sizes, the library and its environment variables
///   determine it. It is the same from run to run but not rank order, and all_reduce need not have the bits
///   of reduce_scatter and all_gather.
/// - A maximum passes over a NaN that is not in all summands.
/// - Ranks that call different operations are not detected: they wait until the deadline. all_to_all is not
/// in place. A Work
///   destroyed unwaited gives up nothing: its receives are filled.
/// - A watchdog looks for errors and deadlines, ends the world (ncclCommAbort) and names the operation. What
/// was on the device's streams
///   then completes with any contents: `throw_if_ended` comes before anything that a step made is believed.
///
/// Memory registered with NCCL (ncclCommRegister, or windows of symmetric memory) would be the buckets',
/// which are fixed for the whole run; it has to come from ncclMemAlloc, which is for Backend::allocate to
/// choose. Nothing here stands against it.
class NcclWorld {
 public:
  virtual ~NcclWorld() = default;
  /// Of a group of NcclOptions, of several ranks if the world has several; once for each. The backend's
  /// device is the world's.
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
