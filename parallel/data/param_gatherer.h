#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/backend/backend.h"
#include "parallel/data/buckets.h"
#include "parallel/data/data_parallel.h"

namespace trainerd::parallel {

/// A unit of parameters as its users see it.
struct ParamUnit {
  bool vectors = false;          ///< small, and used beside a unit of matrices
  std::int64_t extra_bytes = 0;  ///< what its user keeps beside each gathered copy
};

/// The parameters of a unit, together.
struct GatheredUnit {
  kernels::Tensor whole;  ///< flat, of the unit's size
  /// U8 [extra_bytes], as its last user left it; undefined when parameters stay whole.
  kernels::Tensor extra;
  std::int64_t serial = 0;  ///< another one for each gathering; 0 when parameters stay whole
  int* leases = nullptr;    ///< how many users there are: the place is not used anew while there is one
};

/// Brings the data-parallel parts of parameters together for use: once after each update into one flat array,
/// or (`sharded`, ZeRO 3) unit by unit as a walk over the model needs them, each time anew, into a ring. The
/// order in which a pass uses units is learned in the first one; after that each is gathered while the one
/// before it is used.
class ParamGatherer {
 public:
  enum class Pass : std::uint8_t { train, evaluate };

  ParamGatherer(const DataParallelGroups& groups, const BucketLayout& plan, std::vector<ParamUnit> units,
                bool sharded, kernels::DType dtype, kernels::MemoryTerm term, kernels::Arena& persistent);

  /// Whole parameters; undefined when they are sharded.
  const kernels::Tensor& flat() const { return flat_; }
  /// This rank's part of bucket `b`.
  kernels::Tensor part(std::size_t b) const;

  void begin_pass(Pass pass);
  /// A walk over the units of one chunk and microbatch begins: it gathers what it uses.
  void begin_walk();
  GatheredUnit use(kernels::Stream& stream, std::size_t unit);
  /// What is under way is done: the parts may change.
  void finish(kernels::Stream& stream);
  /// The parts changed.
  void updated(kernels::Stream& stream);

 private:
  struct Slot {
    kernels::Tensor whole, extra;
    std::vector<BucketGather> pending;
    std::int64_t entry = -1;  ///< of the pass: what it holds or will
    std::int64_t serial = 0;
    int leases = 0;
  };
  struct Ring {
    std::vector<Slot> slots;
    std::array<std::vector<std::size_t>, 2> order;  ///< by pass: the units in order of use
    std::int64_t entry = -1;                        ///< in use
    bool between_walks = true;
  };
  void start(kernels::Stream& stream, std::size_t unit, const kernels::Tensor& whole,
             std::vector<BucketGather>& pending);
  void settle(kernels::Stream& stream, std::vector<BucketGather>& pending);
  void fetch(kernels::Stream& stream, Ring& ring, std::int64_t entry);

  DataParallelGroups groups_;
  BucketLayout plan_;
  std::vector<ParamUnit> units_;
  bool sharded_;
  kernels::Tensor flat_, parts_;
  std::array<Ring, 2> rings_;  // of matrices, of vectors
  Pass pass_ = Pass::train;
  std::array<bool, 2> learned_{};
  std::vector<std::vector<BucketGather>> pending_;  // of whole parameters, by unit
  std::int64_t serial_ = 0;
  int leases_ = 0;
};

}  // namespace trainerd::parallel
