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
  std::size_t keep = 10;  ///< layouts to report
  int threads = 0;        ///< 0: one for each core
  LayoutSpace space = {};
  std::vector<LayoutChoice> layouts = {};  ///< in place of the space
};

/// A layout that was planned.
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
  std::vector<RankedLayout> best;     ///< that fit, fastest first; of equals the one that needs least memory
  std::vector<RankedLayout> nearest;  ///< when none fits: those that need least memory
  std::string refused = {};           ///< why one of them cannot be planned, when none can
  std::int64_t layouts = 0;           ///< in the space
  std::int64_t too_large = 0;         ///< by their bound: not planned
  std::int64_t planned = 0;
  std::int64_t device_bytes = 0;
  double seconds = 0;  ///< that the search took
  bool timed = true;   ///< false: the topology has no rates; `best` are layouts that fit and give up least
                       ///< memory, and have no times
};

/// The fastest layouts of the job's ranks, global batch and model on the machines of `topology` that fit
/// them. Layouts are planned in the order of their bounds (LayoutBounds) until the next bound is above the
/// last of the best: the result is that of planning all. Where the topology has no rates, layouts are
/// compared by memory alone: those that fill a device most are taken to give up least speed. Throws SpecError
/// where no layout exists at all.
SearchResult search_layouts(const job::JobSpec& job, const parallel::Topology& topology,
                            const SearchOptions& options = {});

/// Layouts with as few changes of the job's as any that fits, fastest first; on a topology without rates
/// those that fill it most.
std::vector<RankedLayout> near_layouts(const job::JobSpec& job, const parallel::Topology& topology,
                                       std::size_t keep);
/// Of a job of which no layout fits, those that need least memory.
std::vector<RankedLayout> smallest_layouts(const job::JobSpec& job, const parallel::Topology& topology,
                                           std::size_t keep);

/// What a job that does not fit could change: attention's backward, where that alone makes it fit; then by
/// `near_layouts`, and when there are none and `otherwise` says so, by `smallest_layouts`.
enum class NoneFits : std::uint8_t { nothing, smallest };
std::vector<NearLayout> near_changes(const job::JobSpec& job, const parallel::Topology& topology,
                                     NoneFits otherwise);

/// The chosen job as YAML, with its figures in comments. `best` is not empty.
std::string chosen_yaml(const job::JobSpec& job, const SearchResult& result);
std::string search_text(const job::JobSpec& job, const parallel::Topology& topology,
                        const SearchResult& result);
std::string search_json(const job::JobSpec& job, const parallel::Topology& topology,
                        const SearchResult& result);

}  // namespace trainerd::core::plan
