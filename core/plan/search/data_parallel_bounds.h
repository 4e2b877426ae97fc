#pragma once

#include <cstdint>
#include <tuple>

#include "core/plan/search/layout_parts.h"
#include "core/plan/search/probe_job.h"

namespace trainerd::core::plan {

/// The layers and tables that a rank holds.
struct DataParallelUnits {
  std::int64_t layers = 0, expert_layers = 0;  ///< all, and those of them with experts
  bool embedding = false, head = false;

  bool operator==(const DataParallelUnits&) const = default;
  std::int64_t layers_of(MlpKind mlp) const {
    return mlp == MlpKind::experts ? expert_layers : layers - expert_layers;
  }
  void add(const parallel::ChunkSpan& span, const job::ModelOptions& model) {
    layers += span.layers;
    expert_layers += job::expert_layers(model, span.first_layer, span.layers);
    embedding = embedding || span.embedding, head = head || span.head;
  }
};

/// Seconds of a rank's data-parallel collectives, by level. With a single level all of it is `inner`.
struct DataParallelSeconds {
  double reduce_inner = 0, reduce_outer = 0;  ///< gradient reduction with one microbatch per step
  double reduce_inner_again = 0,
         reduce_outer_again = 0;              ///< additional time per further microbatch
  double gather_inner = 0, gather_outer = 0;  ///< once per step: parameters, or gradients with ZeRO 0
  double gather_inner_walks = 0,
         gather_outer_walks = 0;  ///< per microbatch with ZeRO 3: layers twice, tables once
};

/// Lower bounds on the cost of data parallelism, from the trainer's own parameters in the meta world
/// (param_record.h). They come from chunks of one to three layers, because each further layer of a kind adds
/// the same. Seconds leave out norms and biases, and with expert parallelism all but the experts.
class DataParallelBounds {
 public:
  explicit DataParallelBounds(LayoutParts& parts) : parts_(parts) {}

  /// Bytes of parameters, gradients and optimizer state.
  double state_bytes(const LayoutChoice& c, const DataParallelUnits& units);
  DataParallelSeconds seconds(const LayoutChoice& c, const DataParallelUnits& units,
                              const GroupPlaces::ByGroup& places);

 private:
  struct Ranks {
    std::int64_t tp = 1, ep = 1, etp = 0, dp = 1, inner = 1;
    bool replicas = false;
    std::int64_t zero = 0, bucket_bytes = 0;
    auto operator<=>(const Ranks&) const = default;
  };
  Ranks ranks_of(const LayoutChoice& c) {
    const parallel::DataParallelLevels& levels = parts_.levels(c);
    return {c.tp, c.ep, c.etp, c.gradient_ranks(), levels.inner, levels.replicas, c.zero, c.bucket_bytes};
  }
  /// layers, what they are, embedding, head
  using Unit = std::tuple<std::int64_t, MlpKind, bool, bool>;
  /// Members per domain and link, for the inner and the outer group.
  using Places = std::tuple<std::int64_t, parallel::Link, std::int64_t, parallel::Link>;

  double record_bytes(const LayoutChoice& c, const Unit& unit);
  DataParallelSeconds record_seconds(const LayoutChoice& c, const Unit& unit,
                                     const GroupPlaces::ByGroup& places);

  LayoutParts& parts_;
  SharedMemo<std::tuple<Ranks, Unit, bool>, double> bytes_;  // the bool: several microbatches
  SharedMemo<std::tuple<Ranks, Unit, Places>, DataParallelSeconds> seconds_;
};

}  // namespace trainerd::core::plan
