#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/plan/search/layout_parts.h"
#include "parallel/data/buckets.h"

namespace trainerd::core {

/// The layers and tables that a rank holds.
struct DataParallelUnits {
  std::int64_t layers = 0;
  bool embedding = false, head = false;

  bool operator==(const DataParallelUnits&) const = default;
  void add(const parallel::ChunkSpan& span) {
    layers += span.layers;
    embedding = embedding || span.embedding, head = head || span.head;
  }
};

/// Seconds of a rank's data-parallel collectives, by level: `inner` is the only one where there is one.
struct DataParallelSeconds {
  double reduce_inner = 0, reduce_outer = 0;  ///< of all gradients once
  double reduce_inner_again = 0,
         reduce_outer_again = 0;              ///< the same with each microbatch, where gradients are sharded
  double gather_inner = 0, gather_outer = 0;  ///< of all parameters once
  double gather_inner_walks = 0,
         gather_outer_walks = 0;  ///< by a microbatch's walks: layers twice, tables once
  double gather_gradients = 0;    ///< of whole gradients
};

/// What data parallelism takes at least: norms and biases of their own are left out.
class DataParallelBounds {
 public:
  explicit DataParallelBounds(LayoutParts& parts) : parts_(parts) {}

  /// Parameters, gradients and the optimizer's state of a rank with so many elements and, unsharded, so many
  /// bytes of the optimizer's states.
  double state_bytes(const LayoutChoice& c, double elements, double states, const DataParallelUnits& units);
  DataParallelSeconds seconds(const LayoutChoice& c, const DataParallelUnits& units,
                              const GroupPlaces::ByGroup& places);

 private:
  using States = std::vector<std::string>;  ///< of the optimizer, for all parameters of a view
  /// A layer's matrices or a table, as a unit for each view that has some of them.
  struct UnitSections {
    std::vector<parallel::Section> sections;
    std::vector<std::int64_t> largest;  ///< elements of a unit, by view
  };
  struct Sections {
    UnitSections layer, embedding, head;
    std::size_t views = 0;
  };
  /// Of one unit.
  struct UnitSeconds {
    DataParallelSeconds layer, embedding, head;
  };
  using UnitKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                             parallel::Link, std::int64_t, parallel::Link>;

  const Sections& sections(std::int64_t tp, std::int64_t parts);
  UnitSeconds unit_seconds(const LayoutChoice& c, const GroupPlace& inner, const GroupPlace* outer);

  LayoutParts& parts_;
  SharedMemo<std::pair<std::int64_t, std::int64_t>, Sections> sections_;
  SharedMemo<UnitKey, UnitSeconds> units_;
};

}  // namespace trainerd::core
