#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "core/plan/cost/group_places.h"
#include "core/plan/search/layout_space.h"
#include "core/train/rank_schedule.h"

namespace trainerd::core::plan {

/// Values by key. Each is computed once, by the first thread that asks for it.
template <class Key, class Value>
class SharedMemo {
 public:
  template <class Make>
  const Value& get(const Key& key, const Make& make) {
    Entry* entry = nullptr;
    {
      const std::lock_guard lock(mutex_);
      entry = &entries_[key];
    }
    std::call_once(entry->made, [&] { entry->value = std::make_unique<const Value>(make()); });
    return *entry->value;
  }

 private:
  struct Entry {
    std::once_flag made;
    std::unique_ptr<const Value> value;
  };
  std::mutex mutex_;
  std::map<Key, Entry> entries_;  // a map's entries do not move
};

/// Data that layouts of one job share. Thread-safe.
class LayoutParts {
 public:
  LayoutParts(const job::JobSpec& job, const parallel::Topology& topology) : job_(job), topology_(topology) {}

  const job::JobSpec& job() const { return job_; }
  const parallel::Topology& topology() const { return topology_; }
  std::int64_t microbatches(const LayoutChoice& c) const {
    const std::int64_t sequences = c.micro * c.dp;
    return (job_.batch.global + sequences - 1) / sequences;
  }
  /// The same layout as from parallel::resolve_layout.
  parallel::Layout layout(const LayoutChoice& choice);
  const parallel::DataParallelLevels& levels(const LayoutChoice& choice) { return like(choice).dp_levels; }
  const GroupPlaces& places(const LayoutChoice& choice);
  const std::vector<parallel::ChunkSpan>& chunks(const LayoutChoice& choice);
  const std::vector<train::SlotCounts>& slots(const LayoutChoice& choice);

 private:
  using Grid = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                          std::int64_t>;  // tp, cp, pp, ep, etp, hybrid group
  using Shape =
      std::tuple<parallel::ScheduleKind, std::int64_t, std::int64_t, std::int64_t>;  // last: microbatches
  static Grid grid_of(const LayoutChoice& c) {
    return {c.tp, c.cp,  c.pp,
            c.ep, c.etp, c.zero > 0 && c.zero_group < c.gradient_ranks() ? c.zero_group : 0};
  }

  const parallel::Layout& like(const LayoutChoice& choice);

  const job::JobSpec& job_;
  const parallel::Topology& topology_;
  SharedMemo<Grid, parallel::Layout> layouts_;
  SharedMemo<Grid, GroupPlaces> places_;
  // By schedule, number of stages and chunks per stage.
  SharedMemo<std::tuple<parallel::ScheduleKind, std::int64_t, std::int64_t>, std::vector<parallel::ChunkSpan>>
      chunks_;
  SharedMemo<std::pair<Shape, std::int64_t>, train::Pools> pools_;  // by recomputed layers
  /// By microbatches of each of the run's batches too.
  SharedMemo<std::tuple<Shape, train::Pools, std::vector<std::int64_t>>, std::vector<train::SlotCounts>>
      slots_;
};

}  // namespace trainerd::core::plan
