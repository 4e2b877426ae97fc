#include "core/plan/search/search.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "core/plan/cost/cost_model.h"
#include "core/plan/search/layout_bounds.h"
#include "core/rank/dry_run.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::core::plan {
namespace {

constexpr double kFar = std::numeric_limits<double>::infinity();

/// Runs `work` on every thread and rethrows the first error.
template <class Work>
void on_threads(int threads, const Work& work) {
  std::exception_ptr error;
  std::mutex mutex;
  const auto guarded = [&] {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < threads; ++i) helpers.emplace_back(guarded);
    guarded();
  }
  if (error) std::rethrow_exception(error);
}

/// bound: the layouts with the smallest bounds on memory, without a look at others.
enum class Goal : std::uint8_t { time, memory, bound };

/// Finds the best of a list of layouts.
class Search {
 public:
  Search(LayoutParts& parts, LayoutBounds& bounds, std::span<const LayoutChoice> choices, std::size_t keep,
         int threads)
      : parts_(parts), choices_(choices), keep_(keep), threads_(threads), bounds_(choices.size()) {
    // Consecutive layouts share much work, so each thread takes runs of them.
    constexpr std::size_t kRun = 256;
    std::atomic<std::size_t> next{0};
    on_threads(threads_, [&] {
      for (std::size_t begin = next.fetch_add(kRun); begin < choices_.size(); begin = next.fetch_add(kRun)) {
        const auto run = bounds.of(choices_.subspan(begin, std::min(kRun, choices_.size() - begin)));
        std::copy(run.begin(), run.end(), bounds_.begin() + static_cast<std::ptrdiff_t>(begin));
      }
    });
  }

  std::vector<RankedLayout> best(Goal goal) {
    std::vector<std::size_t> order;
    const std::int64_t most = device_bytes(parts_.topology(), parts_.job().parallel.ranks());
    for (std::size_t i = 0; i < choices_.size(); ++i)
      if (goal != Goal::time || bounds_[i].bytes <= most) order.push_back(i);
    if (goal == Goal::time) too_large_ = static_cast<std::int64_t>(choices_.size() - order.size());
    const bool by_time = goal == Goal::time && has_rates(parts_.topology(), parts_.job());
    // Without times, the layout that saves least memory is taken to lose least speed.
    const auto bound_of = [&](std::size_t i) {
      const auto bytes = static_cast<double>(bounds_[i].bytes);
      return goal != Goal::time ? bytes : by_time ? bounds_[i].seconds : -bytes;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return bound_of(a) < bound_of(b); });

    std::vector<Found> found;  // the best so far
    std::atomic<std::size_t> next{0};
    std::atomic<double> enough{kFar};
    std::mutex mutex;
    // Without times the first layouts that fit are taken, and by bounds the first. One thread does this, so
    // that the result is reproducible.
    const bool first = goal == Goal::bound || (goal == Goal::time && !by_time);
    on_threads(first ? 1 : threads_, [&] {
      for (std::size_t at = next.fetch_add(1); at < order.size(); at = next.fetch_add(1)) {
        if (bound_of(order[at]) > enough) return;
        const auto layout = plan(choices_[order[at]]);
        if (!layout || (goal == Goal::time && !layout->fits)) continue;
        const double value = goal != Goal::time ? static_cast<double>(layout->peak_bytes)
                             : by_time          ? layout->step_seconds
                                                : static_cast<double>(at);
        const std::lock_guard lock(mutex);
        Found f{value, layout->peak_bytes, order[at], *layout};
        found.insert(std::upper_bound(found.begin(), found.end(), f), f);
        if (found.size() > keep_) found.pop_back();
        // Layouts with an equal value are still planned, because memory decides between them.
        if (found.size() == keep_) enough = first ? -kFar : found.back().value;
      }
    });
    std::vector<RankedLayout> ranked;
    for (Found& f : found) ranked.push_back(f.layout);
    return ranked;
  }

  std::int64_t too_large() const { return too_large_; }
  std::int64_t planned() const { return planned_; }
  const std::string& refused() const { return refused_; }

 private:
  struct Found {
    double value;
    std::int64_t peak_bytes;
    std::size_t index;
    RankedLayout layout;
    bool operator<(const Found& b) const {
      return std::tie(value, peak_bytes, index) < std::tie(b.value, b.peak_bytes, b.index);
    }
  };

  std::optional<RankedLayout> plan(const LayoutChoice& c) {
    // Bucket size hardly changes memory.
    constexpr double kFarTooLarge = 1.01;
    LayoutChoice alike = c;
    alike.bucket_bytes = 0;
    {
      const std::lock_guard lock(mutex_);
      if (std::find(hopeless_.begin(), hopeless_.end(), alike) != hopeless_.end()) return std::nullopt;
    }
    ++planned_;
    try {
      const Plan p = plan_layout(with_choice(parts_.job(), c), parts_.topology(), parts_.layout(c),
                                 parts_.slots(c), parts_.places(c), WhenTooLarge::memory_alone);
      if (!p.fits && static_cast<double>(p.peak_bytes) > kFarTooLarge * static_cast<double>(p.device_bytes)) {
        const std::lock_guard lock(mutex_);
        hopeless_.push_back(alike);
      }
      return RankedLayout{
          c, p.fits, p.peak_bytes, p.time.step_seconds, p.tokens_per_second_per_device, p.mfu, p.time.bubble};
    } catch (const base::CapacityError& error) {  // larger than any machine, or attention refused
      const std::lock_guard lock(mutex_);
      refused_ = error.what();
      return std::nullopt;
    }
  }

  LayoutParts& parts_;
  std::span<const LayoutChoice> choices_;
  std::size_t keep_;
  int threads_;
  std::vector<LayoutBound> bounds_;
  std::int64_t too_large_ = 0;
  std::atomic<std::int64_t> planned_{0};
  std::mutex mutex_;
  std::vector<LayoutChoice> hopeless_;
  std::string refused_;
};

int threads_of(const SearchOptions& options) {
  return options.threads > 0 ? options.threads
                             : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::vector<RankedLayout> near_layouts(const job::JobSpec& job, const parallel::Topology& topology,
                                       NoneFits otherwise) {
  constexpr std::size_t kEnough = 3;
  if (!least_state(job, topology).fits) return {};
  const LayoutChoice own = choice_of(job);
  const std::vector<LayoutChoice> all = all_layouts(job, topology);
  std::vector<std::vector<LayoutChoice>> by_changes;
  for (const LayoutChoice& c : all) {
    const std::size_t n = changes(own, c);
    if (by_changes.size() <= n) by_changes.resize(n + 1);
    by_changes[n].push_back(c);
  }
  LayoutParts parts(job, topology);
  LayoutBounds bounds(parts);
  for (std::size_t n = 1; n < by_changes.size(); ++n) {
    auto fitting = Search(parts, bounds, by_changes[n], kEnough, threads_of({})).best(Goal::time);
    if (!fitting.empty()) return fitting;
  }
  if (otherwise == NoneFits::nothing) return {};
  return Search(parts, bounds, all, kEnough, threads_of({})).best(Goal::memory);
}

}  // namespace

SearchResult search_layouts(const job::JobSpec& job, const parallel::Topology& topology,
                            const SearchOptions& options) {
  const double start = base::monotonic_seconds();
  rank::require_room_for_ranks(job, topology);
  const std::vector<LayoutChoice> choices =
      options.layouts.empty() ? all_layouts(job, topology, options.space) : options.layouts;
  if (choices.empty())
    throw base::spec_error(
        "--search: no layout of " + std::to_string(job.parallel.ranks()) +
        " ranks exists: batch.global has fewer sequences than every data-parallel size that heads and "
        "layers leave");
  LayoutParts parts(job, topology);
  LayoutBounds bounds(parts);
  Search search(parts, bounds, choices, options.keep, threads_of(options));
  SearchResult result;
  result.timed = has_rates(topology, job);
  result.best = search.best(Goal::time);
  if (result.best.empty())
    result.nearest = search.best(least_state(job, topology).fits ? Goal::memory : Goal::bound);
  if (result.best.empty() && result.nearest.empty()) result.refused = search.refused();
  result.layouts = static_cast<std::int64_t>(choices.size());
  result.too_large = search.too_large();
  result.planned = search.planned();
  result.device_bytes = device_bytes(topology, job.parallel.ranks());
  result.seconds = base::monotonic_seconds() - start;
  return result;
}

std::vector<NearLayout> near_changes(const job::JobSpec& job, const parallel::Topology& topology,
                                     NoneFits otherwise) {
  const LayoutChoice own = choice_of(job);
  std::vector<NearLayout> changes;
  const auto add_if_it_fits = [&](const job::JobSpec& changed, const char* change) {
    if (!least_state(changed, topology).fits) return false;
    const Plan plan = make_plan(changed, topology);
    if (plan.fits) changes.push_back({change, plan.peak_bytes, true, plan.time.step_seconds});
    return plan.fits;
  };
  if (job.parallel.ep > 1 && job.parallel.ep_capacity == 0) {
    // The mean is enough for balanced experts; it is the user's to say that theirs are.
    job::JobSpec changed = job;
    changed.parallel.ep_capacity = 2;
    add_if_it_fits(changed,
                   "parallel.ep_capacity: 2, if no rank's experts get more than twice their mean of tokens");
    changed.parallel.ep_comm = parallel::ExpertComm::all_to_all;
    add_if_it_fits(changed, "parallel.ep_comm: all_to_all with parallel.ep_capacity: 2");
  }
  if (topology.device.kind == kernels::DeviceKind::cuda) {
    job::JobSpec changed = job;
    // The library needs workspace for determinism. No layout changes that.
    changed.attention.backward = kernels::Determinism::fast;
    if (changed != job) add_if_it_fits(changed, "attention: fast");
    changed = job;
    if (job.recompute.kind == job::RecomputeKind::full) {
      changed.parallel.offload_activations = true;
      if (changed != job) add_if_it_fits(changed, "parallel: {offload_activations: true}");
    }
    changed = job;
    changed.optimizer.offload = true;
    const bool enough = changed != job && add_if_it_fits(changed, "optimizer: {offload: true}");
    parallel::ParallelOptions& p = changed.parallel;
    p.zero = 3, p.offload_params = p.offload_grads = true;
    if (!enough && p.zero_group == 0 && !p.takes_turns()) {
      const bool state = changed != job && add_if_it_fits(changed,
                                                          "optimizer: {offload: true}, parallel: {zero: 3, "
                                                          "offload_params: true, offload_grads: true}");
      changed.recompute = {job::RecomputeKind::full, 1}, p.offload_activations = true;
      if (!state && changed != job)
        add_if_it_fits(changed,
                       "optimizer: {offload: true}, recompute: {kind: full}, parallel: {zero: 3, "
                       "offload_params: true, offload_grads: true, offload_activations: true}");
    }
  }
  for (const RankedLayout& near : near_layouts(job, topology, otherwise)) {
    std::string change;
    for (const std::string& key : differences(own, near.choice)) change += (change.empty() ? "" : ", ") + key;
    changes.push_back({change, near.peak_bytes, near.fits, near.step_seconds});
  }
  return changes;
}

}  // namespace trainerd::core::plan
