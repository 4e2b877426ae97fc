#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "core/plan/search/data_parallel_bounds.h"
#include "core/plan/search/layout_parts.h"
#include "core/rank/record.h"

namespace trainerd::core::plan {

/// Lower bounds on a layout's step time and memory.
struct LayoutBound {
  double seconds = 0;
  std::int64_t bytes = 0;
};

/// Costs of a chunk of layers, including its embedding or head.
struct ChunkCosts {
  double forward = 0, backward = 0, backward_input = 0,
         backward_weight = 0;   ///< seconds per microbatch, including tensor-parallel all-reduces
  double update = 0, norm = 0;  ///< seconds per step for all of the chunk's elements
  std::array<double, train::kSlotClasses> slot_bytes{};
  double scratch_bytes = 0;
};

/// Lower bounds on a `Plan`'s step time and peak memory. They come from records of chunks of one to three
/// layers, because a chunk's computation, memory and tensor-parallel traffic grow by the same amount with
/// each layer of a kind. These do not depend on dp, zero and buckets, and on the schedule only by whether it
/// computes weight gradients separately. The bound on seconds is the longest of these paths:
/// - all chunks' forwards, every microbatch on the last chunk, all chunks' backwards
/// - forwards of the first stages, all computations of a rank, backwards of the first stages (a pipeline
///   fills and drains through them)
/// - the same up to the last microbatch's backwards, then the reduction of this rank's gradients
/// - all chunks' forwards and the backwards of the stages after a rank, then all its reductions: one, or with
///   ZeRO 2 and 3 one per microbatch
/// - the gather of a first chunk's parameters, then the rank's computations
/// - a data-parallel stream's own collectives
/// All but the last also include the smallest time of update and gradient norm over the ranks. Of Muon's
/// update only the products count. A layout whose memory bound exceeds the device has no time bound: 0.
class LayoutBounds {
 public:
  explicit LayoutBounds(LayoutParts& parts);
  /// Fast for layouts in the order of `all_layouts`.
  std::vector<LayoutBound> of(std::span<const LayoutChoice> choices);

 private:
  struct Stage;
  struct Chain;
  /// Where the groups are whose collectives stop a rank's computations.
  struct Places {
    GroupPlace tp, ep;
  };
  struct LayerKind {
    job::RecomputeKind recompute = job::RecomputeKind::none;
    MlpKind mlp = MlpKind::dense;
    auto operator<=>(const LayerKind&) const = default;
  };
  /// tp, cp, ep, etp, sequence parallel, micro, kind of layers, weight gradients separate, ends (1:
  /// embedding, 2: head), layers, places of the tp and the ep group
  using ProbeKey =
      std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, std::int64_t, LayerKind, bool,
                 int, std::int64_t, std::int64_t, parallel::Link, std::int64_t, parallel::Link>;

  const ChunkCosts& probe(const LayoutChoice& c, const Places& places, LayerKind kind, int ends,
                          std::int64_t layers);
  ChunkCosts record_probe(const LayoutChoice& c, const Places& places, LayerKind kind, int ends,
                          std::int64_t layers) const;
  ChunkCosts costs_of(const LayoutChoice& c, const Places& places, const parallel::ChunkSpan& span);
  Chain chain_of(const LayoutChoice& c);
  double orthogonal_of(const DataParallelUnits& units) const;
  LayoutBound bound(const LayoutChoice& c, const Chain& chain);

  LayoutParts& parts_;
  DataParallelBounds data_parallel_;
  const bool timed_;
  const std::int64_t device_bytes_;  ///< memory that a layout must fit
  /// Newton-Schulz seconds of a layer's matrices, with Muon, by MlpKind.
  std::array<double, 2> orthogonal_seconds_ = {};
  SharedMemo<ProbeKey, ChunkCosts> probes_;
};

}  // namespace trainerd::core::plan
