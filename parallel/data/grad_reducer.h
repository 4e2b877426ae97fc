#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/backend/backend.h"
#include "parallel/data/buckets.h"
#include "parallel/data/data_parallel.h"
#include "parallel/data/rounded_sum.h"

namespace trainerd::parallel {

/// A range of the flat gradients to sum over a group, whose ranks all lay it out alike:
/// norms of a split sequence, heads that several ranks hold, a tied embedding.
struct PartialSum {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  Communicator* group = nullptr;
  const char* label = "";
};

/// How the gradients of a unit live when they are sharded.
struct GradUnit {
  /// Vectors, whose gradients accumulate while those of several matrix units come and go; or both uses of a
  /// tied embedding.
  enum class Ring : std::uint8_t { matrices, vectors, own } ring = Ring::matrices;
  std::int64_t reductions = 1;  ///< in a step
};

/// Sums gradients over the data-parallel ranks, unit by unit as backward completes them, each bucket by
/// reduce-scatter. Every ZeRO stage makes its sums this way. Whole gradients stay in one flat array, where
/// each sum takes the place of this rank's part, or
/// (`sharded`) pass through a ring of unit sizes, and only this rank's parts are kept, to which the
/// reductions of a step add up.
///
/// Where fp32 gradients are rounded for the way, sums are not: what is gathered of them, for whole gradients
/// or among replicas, is fp32. One rank rounds nothing.
class GradReducer {
 public:
  GradReducer(const DataParallelGroups& groups, const BucketLayout& plan, std::vector<GradUnit> units,
              bool sharded, const GradDtypes& dtypes, kernels::Backend& backend, kernels::Arena& persistent);

  void begin_step();
  /// Where the unit's gradients accumulate, a flat tensor of its size: the same until it is reduced.
  kernels::Tensor open(kernels::Stream& stream, std::size_t unit);
  /// The unit's gradients are complete: starts their reduction.
  void reduce(kernels::Stream& stream, std::size_t unit);
  /// After the last reduction: what `stream` does next sees the sums in its parts, those of `partial_sums`
  /// included.
  void finish(kernels::Stream& stream, std::span<const PartialSum> partial_sums);
  /// Brings all parts together in `flat`: for a state that every rank holds whole.
  void gather(kernels::Stream& stream);

  /// This rank's part of a bucket: where its sum is. Of whole gradients it lies among them, as each sum is
  /// made in place.
  kernels::Tensor part(std::size_t bucket) const;
  /// The whole gradients; undefined when they are sharded.
  const kernels::Tensor& flat() const { return flat_; }
  /// This rank's parts in bucket order; undefined when it holds whole gradients.
  const kernels::Tensor& parts() const { return parts_; }

 private:
  /// Operations of a bucket's reduction: inside; then outside, or among replicas after the last one of the
  /// step, which gather rounded sums by an operation of its own.
  enum class Hop : std::uint8_t { inside, outside, gather };
  struct Pending {
    std::uint64_t serial = 0;  ///< in the order of starts
    std::size_t bucket = 0;
    kernels::Tensor whole;  ///< the bucket's gradients
    kernels::Tensor out;    ///< where the sum goes: the part itself, or what is then added to it
    kernels::WriteMode mode = kernels::WriteMode::assign;  ///< of RoundedSum's, to `out`
    bool last = true;
    Hop hop = Hop::inside;  ///< the operation under way
    std::unique_ptr<Work> work;
    std::optional<StagingRing::Run> staged;  ///< by the level of `hop`
  };
  /// Holds one unit at a time, from its first gradient until its slot is needed again.
  struct Slot {
    kernels::Tensor whole, sums;
    std::vector<Pending> pending;
  };
  struct Ring {
    std::vector<Slot> slots;
    std::size_t next = 0;  ///< the oldest
  };
  void take_rings(kernels::DType dtype, kernels::Arena& persistent);
  void take_staging(kernels::Arena& persistent);
  /// Whether a sum is added to the part as it is made: in fp32 by RoundedSum. In bf16 it is rounded first, as
  /// what the communicator sums is.
  bool adds_in_place() const { return rounded_inside_ && dtypes_.held == kernels::DType::f32; }
  CommOptions options() const { return {.label = "gradients", .progress = groups_.gradients}; }
  std::optional<RoundedSum>& level(Hop hop) {
    return hop == Hop::inside ? rounded_inside_ : rounded_outside_;
  }
  /// Starts the pending's operation at the level of its hop, when there is room.
  void send_rounded(kernels::Stream& stream, const kernels::Tensor& x, Pending& pending);
  void advance_rounded(kernels::Stream& stream, Pending& pending);
  /// The sum in `out` is in the part.
  void add_to_part(kernels::Stream& stream, const Pending& pending);
  /// Awaits what is under way and issues what follows it.
  void advance(kernels::Stream& stream, Pending& pending);
  void settle(kernels::Stream& stream, std::vector<Pending>& pending);
  /// All that is pending, the oldest of each ring first.
  template <class Do>
  void for_pending(const Do& act);
  void add_partial_sum(kernels::Stream& stream, const PartialSum& sum);

  DataParallelGroups groups_;
  BucketLayout plan_;
  std::vector<GradUnit> units_;
  bool sharded_;
  GradDtypes dtypes_;
  kernels::Backend& backend_;
  kernels::Tensor flat_, parts_;
  std::optional<RoundedSum> rounded_inside_, rounded_outside_;  ///< where gradients cross in bf16
  std::uint64_t started_ = 0;
  std::vector<Ring> rings_;
  std::vector<std::size_t> ring_of_unit_;
  std::vector<Slot*> slot_of_unit_;    ///< null: not open
  std::vector<std::int64_t> reduced_;  ///< times in this step, by unit
  std::vector<Pending> pending_;       ///< of whole gradients
};

}  // namespace trainerd::parallel
