#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/job/model_options.h"
#include "core/plan/cost/cost_model.h"
#include "parallel/group/group.h"
#include "parallel/layout/layout.h"
#include "parallel/layout/placement.h"

namespace trainerd::core::plan {

/// The first tensor- and data-parallel rank of a pipeline rank. No other rank of the stage holds more.
std::int64_t representative(const parallel::Layout& layout, std::int64_t pipeline_rank);

/// Locations of the groups of each pipeline rank's representative. Layouts with the same grid and the same
/// grouping of data-parallel ranks have the same locations.
class GroupPlaces {
 public:
  GroupPlaces(const job::ModelOptions& model, const parallel::Layout& layout,
              const parallel::Topology& topology);

  /// Locations of the groups that contain the rank, without `pp`.
  using ByGroup = std::array<std::optional<GroupPlace>, parallel::kGroups.size()>;
  const ByGroup& of(std::int64_t pipeline_rank) const {
    return places_[static_cast<std::size_t>(pipeline_rank)];
  }
  const GroupPlace& at(std::int64_t pipeline_rank, parallel::Group group) const {
    return of(pipeline_rank)[static_cast<std::size_t>(group)].value();
  }
  /// Link between two neighbouring pipeline ranks. The first rank follows the last.
  parallel::Link link(std::int64_t from, std::int64_t to) const;
  /// PlacedGrid::tp_problem.
  std::string tp_problem() const { return placed_.tp_problem(); }

 private:
  parallel::PlacedGrid placed_;
  std::vector<parallel::Link> next_;  // by pipeline rank: link to the next one
  std::vector<ByGroup> places_;
};

}  // namespace trainerd::core::plan
