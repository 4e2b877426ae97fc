#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/plan/predict/plan.h"
#include "core/plan/search/layout_space.h"

namespace trainerd::core::plan {

struct SearchOptions {
  std::size_t keep = 10;  ///< number of layouts to report
  int threads = 0;        ///< 0: one per core
  LayoutSpace space = {};
  std::vector<LayoutChoice> layouts = {};  ///< searched instead of the space, if not empty
};

/// A planned layout.
struct RankedLayout {
  LayoutChoice choice;
  bool fits = false;
  std::int64_t peak_bytes = 0;
  double step_seconds = 0;
  double tokens_per_second_per_device = 0;
  double mfu = 0;
  double bubble = 0;
};

struct SearchResult {
  std::vector<RankedLayout> best;  ///< that fit, fastest first; on ties least memory first
  /// if none fits: layouts with least memory; by their bounds alone if the ranks have less than `least_state`
  std::vector<RankedLayout> nearest;
  std::string refused = {};    ///< if none can be planned: the reason for one of them
  std::int64_t layouts = 0;    ///< layouts in the space
  std::int64_t too_large = 0;  ///< too large by their bound, so not planned
  std::int64_t planned = 0;
  std::int64_t device_bytes = 0;
  double seconds = 0;  ///< duration of the search
  bool timed = true;   ///< false: the topology has no rates; `best` then has layouts that fit and free the
                       ///< least memory, without times
};

/// The fastest layouts that fit, for the job's ranks, global batch and model on the machines of `topology`.
/// Layouts are planned in the order of their bounds (LayoutBounds) until the next bound exceeds the last of
/// the best, so the result equals that of planning all. Without rates layouts are compared by memory alone:
/// less memory saved is taken to mean less speed lost. Throws SpecError if no layout exists.
SearchResult search_layouts(const job::JobSpec& job, const parallel::Topology& topology,
                            const SearchOptions& options = {});

/// What near_changes returns if no layout fits.
enum class NoneFits : std::uint8_t { nothing, smallest };
/// Changes that make a job fit: attention's backward or offloading, if that alone is enough, then the layouts
/// with the fewest changes to the job's among those that fit, fastest first. Without rates those that use
/// most memory come first. If none fits and `otherwise` asks for it, the layouts with least memory. No
/// layouts if the ranks have less memory than `least_state`.
std::vector<NearLayout> near_changes(const job::JobSpec& job, const parallel::Topology& topology,
                                     NoneFits otherwise);

/// The chosen job as YAML, with its figures in comments. `best` must not be empty.
std::string chosen_yaml(const job::JobSpec& job, const SearchResult& result);
std::string search_text(const job::JobSpec& job, const parallel::Topology& topology,
                        const SearchResult& result);
std::string search_json(const job::JobSpec& job, const parallel::Topology& topology,
                        const SearchResult& result);

}  // namespace trainerd::core::plan
