#pragma once

#include <array>
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

/// Range of the flat gradients to sum over a group. All ranks of the group have it at the same place. Used
/// for norms under sequence parallelism, heads that several ranks hold, and a tied embedding.
struct PartialSum {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  Communicator* group = nullptr;
  const char* label = "";
};

/// How the gradients of a unit are stored when they are sharded.
struct GradUnit {
  /// `vectors`: their gradients accumulate while several units of matrices are opened and reduced. `own`: a
  /// slot of its own, for a tied embedding, which has two uses.
  enum class Ring : std::uint8_t { matrices, vectors, own } ring = Ring::matrices;
  std::int64_t reductions = 1;  ///< per step, at most
};

/// Sums gradients over the data-parallel ranks by reduce-scatter, bucket by bucket, as backward completes
/// each unit. Every ZeRO stage makes its sums this way. Unsharded gradients stay in one flat array, where
/// each sum replaces this rank's part. Sharded gradients (`sharded`) pass through a ring of slots of one unit
/// each; only this rank's parts are kept, and the reductions of a step add to them.
///
/// Sharded parts may be in host memory: then a unit's sum is made on the device, its part of earlier sums of
/// the step is copied from the host and added, and the result is copied back. All of it,
/// messages included, runs on a stream of its own beside the backward of the next unit.
///
/// If fp32 gradients are sent as bf16, their sums remain fp32, and gathers of sums (for whole gradients, or
/// among replicas) send fp32. With one rank nothing is rounded.
class GradReducer {
 public:
  GradReducer(const DataParallelGroups& groups, const BucketLayout& plan, std::vector<GradUnit> units,
              bool sharded, const GradDtypes& dtypes, kernels::Backend& backend, kernels::Arena& persistent);
  /// Sharded, with this rank's parts in `host`. Not for replicas (DataParallelGroups::replicas).
  GradReducer(const DataParallelGroups& groups, const BucketLayout& plan, std::vector<GradUnit> units,
              const GradDtypes& dtypes, kernels::Backend& backend, kernels::Arena& persistent,
              const HostLink& link, kernels::Arena& host);

  void begin_step();
  /// Says how often a unit is reduced in each step from now on.
  void expect(std::size_t unit, std::int64_t reductions);
  /// Flat tensor that the unit's gradients accumulate in. It stays the same until the unit is reduced.
  kernels::Tensor open(kernels::Stream& stream, std::size_t unit);
  /// The unit's gradients are complete: starts their reduction.
  void reduce(kernels::Stream& compute, std::size_t unit);
  /// Call after the last reduction. Operations on `stream` after it see the sums in this rank's parts,
  /// including those of `partial_sums`.
  void finish(kernels::Stream& stream, std::span<const PartialSum> partial_sums);
  /// Gathers all parts into `flat`, for an optimizer state that every rank holds whole.
  void gather(kernels::Stream& stream);

  /// This rank's part of a bucket, which holds its sum. If gradients are whole it is a view of `flat`,
  /// because each sum is made in place.
  kernels::Tensor part(std::size_t bucket) const;
  /// The whole gradients; undefined when they are sharded.
  const kernels::Tensor& flat() const { return flat_; }
  /// This rank's parts in bucket order; undefined when it holds whole gradients.
  const kernels::Tensor& parts() const { return parts_; }

 private:
  /// The operations of a bucket's reduction: `inside`, then `outside`. Among replicas `outside` runs only
  /// after the last reduction of the step; rounded sums then need `gather`.
  enum class Hop : std::uint8_t { inside, outside, gather };
  struct Slot;
  struct Pending {
    std::uint64_t serial = 0;  ///< order in which reductions start
    std::size_t bucket = 0;
    kernels::Tensor whole;  ///< the bucket's gradients
    /// destination of the sum: the part, or a buffer that is added to the part afterwards
    kernels::Tensor out;
    kernels::WriteMode mode = kernels::WriteMode::assign;  ///< how RoundedSum writes `out`
    bool last = true;
    Hop hop = Hop::inside;  ///< level of the operation in progress
    std::unique_ptr<Work> work;
    std::optional<StagingRing::Run> staged;  ///< staging memory at the level of `hop`
    Slot* slot = nullptr;                    ///< of sums that go to host memory
  };
  /// Holds one unit at a time, from its first gradient until the slot is reused.
  struct Slot {
    kernels::Tensor whole, sums;
    std::vector<Pending> pending;
    // With parts in host memory: what a stream that reuses the slot waits for.
    std::unique_ptr<kernels::Event> complete;  ///< the gradients in `whole`
    std::vector<std::shared_ptr<Work>> under_way;
  };
  struct Ring {
    std::vector<Slot> slots;
    std::size_t next = 0;  ///< index of the oldest slot
  };
  void take_rings(kernels::DType dtype, kernels::Arena& persistent);
  void take_staging(kernels::Arena& persistent);
  /// True if RoundedSum adds a sum to the part directly, in fp32. A bf16 sum is rounded first, as a
  /// communicator's sum would be.
  bool adds_in_place() const {
    return rounded_inside_ && dtypes_.held == kernels::DType::f32 && !offloaded();
  }
  /// True if the parts are in host memory.
  bool offloaded() const { return link_.to != nullptr; }
  static CommOptions copy_options(const char* label) {
    return {.label = label, .progress = Progress::background};
  }
  /// Adds the unit's sums in `sums` to its part in host memory, whose first piece is `fetched`. Null: assigns
  /// them.
  void store(Slot& slot, std::size_t unit, const kernels::Tensor& sums, std::shared_ptr<Work> fetched);
  /// Copies the piece of the unit's part that begins at `at` to `piece_of(at)`; null behind the last one.
  std::shared_ptr<Work> fetch(std::size_t unit, std::int64_t at);
  const kernels::Tensor& piece_of(std::int64_t at) const {
    return pieces_[static_cast<std::size_t>(at / pieces_[0].numel() % 2)];
  }
  /// `stream` waits for everything that reads or writes the slot.
  static void land(kernels::Stream& stream, Slot& slot);
  CommOptions options() const { return {.label = "gradients", .progress = groups_.gradients}; }
  std::optional<RoundedSum>& level(Hop hop) {
    return hop == Hop::inside ? rounded_inside_ : rounded_outside_;
  }
  /// Starts the operation at the level of `hop`. First completes older ones if the staging ring is full.
  void send_rounded(kernels::Stream& stream, const kernels::Tensor& x, Pending& pending);
  void advance_rounded(kernels::Stream& stream, Pending& pending);
  /// Adds `out` to the part, unless the sum is there already.
  void add_to_part(kernels::Stream& stream, const Pending& pending);
  /// Waits for the operation in progress and issues the next one.
  void advance(kernels::Stream& stream, Pending& pending);
  void settle(kernels::Stream& stream, std::vector<Pending>& pending);
  /// Calls `act` for the pending reductions of each slot, the oldest of each ring first, then for `pending_`.
  template <class Do>
  void for_pending(const Do& act);
  void add_partial_sum(kernels::Stream& stream, const PartialSum& sum);

  DataParallelGroups groups_;
  BucketLayout plan_;
  std::vector<GradUnit> units_;
  bool sharded_;
  GradDtypes dtypes_;
  kernels::Backend& backend_;
  HostLink link_;  ///< null members: the parts are on the device
  kernels::Arena no_scratch_;
  std::unique_ptr<kernels::Stream> chain_;     ///< of sums that go to host memory
  std::array<kernels::Tensor, 2> pieces_;      ///< pieces of earlier sums from host memory
  std::vector<std::shared_ptr<Work>> stored_;  ///< last copy to host memory, by unit
  kernels::Tensor flat_, parts_;
  std::optional<RoundedSum> rounded_inside_, rounded_outside_;  ///< defined if gradients are sent as bf16
  std::uint64_t started_ = 0;
  std::vector<Ring> rings_;
  std::vector<std::size_t> ring_of_unit_;
  std::vector<Slot*> slot_of_unit_;               ///< null: the unit is not open
  std::vector<std::int64_t> reduced_, expected_;  ///< reductions in this step, and all of it, by unit
  std::vector<Pending> pending_;                  ///< only if gradients are whole
};

}  // namespace trainerd::parallel
