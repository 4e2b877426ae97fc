#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/job/model_options.h"
#include "core/plan/cost/cost_model.h"
#include "parallel/layout/layout.h"
#include "parallel/layout/placement.h"

namespace trainerd::core {

/// The first tensor- and data-parallel rank of a pipeline rank: it holds as much as any of them.
std::int64_t representative(const parallel::Layout& layout, std::int64_t pipeline_rank);

/// Where the groups of the pipeline ranks' representatives lie. The same for all layouts of one grid and one grouping of its
/// data-parallel ranks.
class GroupPlaces {
 public:
  GroupPlaces(const ModelOptions& model, const parallel::Layout& layout, const parallel::Topology& topology);

  /// By group name; not of "pp".
  const std::map<std::string, GroupPlace>& of(std::int64_t pipeline_rank) const { return places_[static_cast<std::size_t>(pipeline_rank)]; }
  const GroupPlace& at(std::int64_t pipeline_rank, const std::string& group) const { return of(pipeline_rank).at(group); }
  /// Between two pipeline ranks, one the next of the other (after the last comes the first).
  parallel::Link link(std::int64_t from, std::int64_t to) const;
  /// PlacedGrid::tp_problem.
  std::string tp_problem() const { return placed_.tp_problem(); }

 private:
  parallel::PlacedGrid placed_;
  std::vector<parallel::Link> next_;  // by pipeline rank: to the one after it
  std::vector<std::map<std::string, GroupPlace>> places_;
};

}  // namespace trainerd::core
