#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "kernels/backend/backend.h"
#include "parallel/data/buckets.h"
#include "parallel/data/data_parallel.h"

namespace trainerd::parallel {

/// How a unit of parameters is used.
struct ParamUnit {
  bool vectors = false;          ///< small; used at the same time as a unit of matrices
  std::int64_t extra_bytes = 0;  ///< what its user stores with each gathered copy
};

/// All parameters of a unit.
struct GatheredUnit {
  kernels::Tensor whole;  ///< flat, of the unit's size
  /// U8 [extra_bytes], as its last user left it. Undefined when parameters stay whole.
  kernels::Tensor extra;
  std::int64_t serial = 0;  ///< a new number for each gathering; 0 when parameters stay whole
  int* leases = nullptr;    ///< number of users; the slot is not reused while it is above 0
};

/// Gathers the data-parallel parts of parameters: once per update into one flat array, or (`sharded`, ZeRO 3)
/// unit by unit into a ring, each time the model needs them. The first pass of its kind records the order in
/// which units are used. Later ones gather each unit while the one before it is used. Sharded parts may be in
/// host memory: then a unit is copied from there, and gathered if there are several parts. On a device with
/// streams the levels of a gather follow each other in the background.
class ParamGatherer {
 public:
  enum class Pass : std::uint8_t { train, evaluate };
  /// Passes of one kind use units in the same order.
  struct PassKind {
    Pass pass = Pass::train;
    std::int64_t microbatches = 0;
    auto operator<=>(const PassKind&) const = default;
  };

  ParamGatherer(const DataParallelGroups& groups, const BucketLayout& plan, std::vector<ParamUnit> units,
                bool sharded, kernels::DType dtype, kernels::MemoryTerm term, kernels::Arena& persistent,
                kernels::Backend& backend);
  /// Sharded, with this rank's parts in `host`.
  ParamGatherer(const DataParallelGroups& groups, const BucketLayout& plan, std::vector<ParamUnit> units,
                kernels::DType dtype, kernels::MemoryTerm term, kernels::Arena& persistent,
                kernels::Backend& backend, const HostLink& link, kernels::Arena& host);

  /// Whole parameters; undefined when they are sharded.
  const kernels::Tensor& flat() const { return flat_; }
  /// This rank's part of bucket `b`.
  kernels::Tensor part(std::size_t b) const;

  void begin_pass(const PassKind& kind);
  /// Starts a walk over the units of one chunk and microbatch. The walk gathers every unit it uses.
  void begin_walk();
  GatheredUnit use(kernels::Stream& stream, std::size_t unit);
  /// Waits for the gathers in progress. The parts may change after it.
  void finish(kernels::Stream& stream);
  /// The parts have changed: starts gathering them if parameters are whole.
  void updated(kernels::Stream& stream);

 private:
  struct Slot {
    kernels::Tensor whole, extra;
    std::vector<BucketGather> pending;
    std::int64_t entry = -1;  ///< position in the order of the pass; -1: empty
    std::int64_t serial = 0;
    int leases = 0;
  };
  struct Ring {
    std::vector<Slot> slots;
    std::map<PassKind, std::vector<std::size_t>> orders;  ///< the units in order of use
    std::vector<std::size_t>* order = nullptr;            ///< of the pass under way
    std::int64_t entry = -1;                              ///< position of the unit in use
    bool between_walks = true;
  };
  void take_rings(kernels::DType dtype, kernels::Arena& persistent);
  void start(kernels::Stream& stream, std::size_t unit, const kernels::Tensor& whole,
             std::vector<BucketGather>& pending);
  void settle(kernels::Stream& stream, std::vector<BucketGather>& pending);
  void fetch(kernels::Stream& stream, Ring& ring, std::int64_t entry);

  DataParallelGroups groups_;
  BucketLayout plan_;
  std::vector<ParamUnit> units_;
  bool sharded_;
  Communicator* from_host_ = nullptr;  ///< null: the parts are on the device
  kernels::Arena no_scratch_;
  std::unique_ptr<kernels::Stream> chain_;  ///< BucketGather's; null: none
  kernels::Tensor flat_, parts_;
  std::array<Ring, 2> rings_;                       // for matrices, for vectors
  bool learned_ = false;                            ///< the order of the pass under way
  std::vector<std::vector<BucketGather>> pending_;  // by unit; only if parameters are whole
  std::int64_t serial_ = 0;
  int leases_ = 0;
};

}  // namespace trainerd::parallel
