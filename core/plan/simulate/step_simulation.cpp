#include "core/plan/simulate/step_simulation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "core/plan/cost/units.h"
#include "core/plan/predict/schedule_report.h"
#include "core/plan/replay/stage_records.h"
#include "core/train/rank_schedule.h"
#include "core/train/step_trace.h"
#include "io/text/json.h"
#include "kernels/base/error.h"
#include "kernels/tensor/rng.h"

namespace trainerd::core::plan {
namespace {

using parallel::Action;
using parallel::Axis;

void check(const StepNoise& o, std::int64_t ranks) {
  if (!(o.jitter >= 0 && o.jitter < 10))
    throw base::spec_error("--jitter: a coefficient of variation is 0 or more, and below 10");
  if (o.steps < 1) throw base::spec_error("--steps: at least one step is sampled");
  for (const auto& [rank, factor] : o.stragglers) {
    if (rank < 0 || rank >= ranks)
      throw base::spec_error("--straggler: the job has no rank " + std::to_string(rank) +
                             " (nearest valid: " + std::to_string(rank < 0 ? 0 : ranks - 1) + ")");
    if (!(factor > 0 && factor < 1e6))
      throw base::spec_error("--straggler: a rank's work takes a positive multiple of the plan's time");
  }
}

// About 4 us of CPU time each: 20 s.
constexpr std::int64_t kMaxActions = 5'000'000;

/// Refuses samples that would take minutes.
void check_samples(std::int64_t replicas, std::int64_t steps, const parallel::Timeline& timeline) {
  std::int64_t each = 0;
  for (const auto& actions : timeline.ranks) each += static_cast<std::int64_t>(actions.size());
  each *= replicas;  // actions per sampled step; no overflow with at most 131072 ranks and the actions of one
  if (each <= kMaxActions / steps) return;
  const std::int64_t fitting = kMaxActions / std::max<std::int64_t>(1, each);
  throw base::spec_error(
      "--jitter: a sampled step is " + std::to_string(each) + " actions of " + std::to_string(replicas) +
      " replicas, and at most " + std::to_string(kMaxActions) + " are replayed: " +
      (fitting > 0 ? "give --steps " + std::to_string(fitting) + " or fewer"
                   : "simulate the job with a smaller parallel.dp, and batch.global with it"));
}

/// Factor on the planned time of each rank's work.
class Slowdown {
 public:
  Slowdown(const StepNoise& options, const parallel::Layout& layout) : options_(options), layout_(layout) {
    // The lognormal's sigma from its coefficient of variation, with mean 1.
    sigma_ = std::sqrt(std::log1p(options.jitter * options.jitter));
    seed_ = kernels::hash_name("jitter", options.seed);
    find_replicas();
  }

  /// Factor of a pipeline rank of replicas: that of the slowest rank there.
  double of(int step, std::int64_t first_replica, int stage, const Action* action) const {
    double slowest = 0;
    const std::int64_t tp = layout_.options.tp;
    for (const std::int64_t replica : replicas_.at(first_replica))
      for (std::int64_t i = 0; i < tp * layout_.options.cp; ++i) {
        const std::int64_t rank = rank_at(i % tp, i / tp, replica, stage);
        const auto straggler = options_.stragglers.find(rank);
        const double factor = straggler == options_.stragglers.end() ? 1 : straggler->second;
        slowest = std::max(slowest, factor * jitter(step, rank, action));
      }
    return slowest;
  }

  /// Replicas by the first of those that wait for each other in every layer: one each, except that
  /// expert-parallel groups span several.
  const std::map<std::int64_t, std::vector<std::int64_t>>& replicas() const { return replicas_; }

  /// The first of the replicas that wait for the rank in every layer.
  std::int64_t replica_of(std::int64_t rank) const { return first_.at(static_cast<std::size_t>(own(rank))); }

 private:
  std::int64_t own(std::int64_t rank) const {
    return layout_.grid.coordinate(rank)[static_cast<std::size_t>(Axis::dp)];
  }
  std::int64_t rank_at(std::int64_t tp, std::int64_t cp, std::int64_t replica, std::int64_t stage) const {
    parallel::ProcessGrid::Coordinate place{};
    place[static_cast<std::size_t>(Axis::tp)] = tp;
    place[static_cast<std::size_t>(Axis::cp)] = cp;
    place[static_cast<std::size_t>(Axis::dp)] = replica;
    place[static_cast<std::size_t>(Axis::pp)] = stage;
    return layout_.grid.rank(place);
  }

  /// Joins the replicas of each expert-parallel group.
  void find_replicas() {
    const parallel::ParallelOptions& o = layout_.options;
    first_.resize(static_cast<std::size_t>(o.dp));
    std::iota(first_.begin(), first_.end(), 0);
    const auto lead = [this](std::int64_t replica) {
      while (first_[static_cast<std::size_t>(replica)] != replica)
        replica = first_[static_cast<std::size_t>(replica)];
      return replica;
    };
    for (std::int64_t i = 0; o.ep > 1 && i < o.dp * o.cp * o.tp; ++i) {
      const std::int64_t rank = rank_at(i % o.tp, i / o.tp % o.cp, i / o.tp / o.cp, 0);
      parallel::ProcessGrid::Coordinate peer = layout_.expert_grid.coordinate(rank);
      peer[static_cast<std::size_t>(Axis::ep)] = 0;
      const auto [low, high] = std::minmax({lead(own(rank)), lead(own(layout_.expert_grid.rank(peer)))});
      first_[static_cast<std::size_t>(high)] = low;
    }
    for (std::int64_t d = 0; d < o.dp; ++d) {
      first_[static_cast<std::size_t>(d)] = lead(d);
      replicas_[first_[static_cast<std::size_t>(d)]].push_back(d);
    }
  }

  double jitter(int step, std::int64_t rank, const Action* action) const {
    if (sigma_ == 0) return 1;
    std::uint64_t key = seed_ + static_cast<std::uint64_t>(step);
    key = key * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(rank);
    // Philox decorrelates consecutive indices, so the action's position is the index.
    const std::uint64_t index = action == nullptr
                                    ? 0
                                    : 1 + static_cast<std::uint64_t>(action->kind) +
                                          16 * (static_cast<std::uint64_t>(action->chunk) +
                                                (static_cast<std::uint64_t>(action->microbatch) << 20));
    return std::exp(sigma_ * static_cast<double>(kernels::normal_at(key, index)) - sigma_ * sigma_ / 2);
  }

  const StepNoise& options_;
  const parallel::Layout& layout_;
  double sigma_ = 0;
  std::uint64_t seed_ = 0;
  std::vector<std::int64_t> first_;  ///< by replica
  std::map<std::int64_t, std::vector<std::int64_t>> replicas_;
};

/// Builds a timeline of actions and a trace from the replay's slices.
class TimelineBuilder {
 public:
  explicit TimelineBuilder(const parallel::ScheduleShape& shape) {
    timeline_.ranks.resize(static_cast<std::size_t>(shape.stages));
    rows_.resize(timeline_.ranks.size());
    for (int r = 0; r < shape.stages; ++r) {
      trace_.processes.push_back({r, "pipeline rank " + std::to_string(r)});
      trace_.rows.push_back({r, 0, "compute"});
    }
  }

  void add(const ReplaySlice& s) {
    begin_ = std::min(begin_, s.start);
    const auto rank = static_cast<std::size_t>(s.rank);
    if (s.action != nullptr && (s.kind == ReplaySlice::Kind::work || s.kind == ReplaySlice::Kind::stall)) {
      auto& list = timeline_.ranks[rank];
      if (list.empty() || !(list.back().action == (s.other != nullptr ? *s.other : *s.action))) {
        list.push_back({*s.action, s.start, s.start});
        if (s.other != nullptr) list.push_back({*s.other, s.start, s.start});
      }
      list.back().end = s.start + s.seconds;
      if (s.other != nullptr) list[list.size() - 2].end = list.back().end;
    }
    const bool work = s.kind == ReplaySlice::Kind::work,
               behind = s.kind == ReplaySlice::Kind::message || s.kind == ReplaySlice::Kind::collective;
    const char* name = s.other != nullptr    ? "forward and backward"
                       : s.action != nullptr ? train::trace_name(s.action->kind)
                                             : s.name;
    io::TraceSlice slice{.name = work ? name : s.name,
                         .category = behind ? "communication" : s.name,
                         .process = s.rank,
                         .row = behind ? row_of(rank, s.name) : 0,
                         .start_seconds = s.start,
                         .seconds = s.seconds};
    if (s.action != nullptr)
      slice.numbers = {{"chunk", s.action->chunk}, {"microbatch", s.action->microbatch}};
    trace_.slices.push_back(std::move(slice));
  }

  /// Shifts times so that the step begins at 0.
  void finish(const Replay& replay, parallel::Timeline& timeline, io::Trace& trace) {
    for (auto& list : timeline_.ranks)
      for (parallel::TimedAction& timed : list) timed.start -= begin_, timed.end -= begin_;
    for (io::TraceSlice& slice : trace_.slices) slice.start_seconds -= begin_;
    for (const auto& list : timeline_.ranks)
      if (!list.empty()) timeline_.makespan = std::max(timeline_.makespan, list.back().end);
    timeline_.bubble_fraction = replay.bubble;
    timeline = std::move(timeline_);
    trace = std::move(trace_);
  }

 private:
  /// Messages may overlap; they are drawn in the order of arrival. There is one row per group and one for
  /// messages.
  std::int64_t row_of(std::size_t rank, const std::string& name) {
    const auto [at, fresh] = rows_[rank].try_emplace(name, static_cast<std::int64_t>(rows_[rank].size()) + 1);
    if (fresh)
      trace_.rows.push_back({static_cast<std::int64_t>(rank), at->second,
                             name == "message" ? "messages" : name + " in the background"});
    return at->second;
  }

  parallel::Timeline timeline_;
  io::Trace trace_;
  std::vector<std::map<std::string, std::int64_t>> rows_;
  double begin_ = 1e300;
};

}  // namespace

StepSimulation simulate_step(const job::JobSpec& job, const parallel::Topology& topology,
                             const StepNoise& options) {
  const parallel::Layout layout =
      parallel::resolve_layout(job.parallel, topology, rank::model_costs(job.model), job.microbatches());
  check(options, layout.grid.ranks());
  StepSimulation result;
  result.shape = parallel::schedule_shape(job.parallel, job.microbatches());
  const std::vector<train::SlotCounts> slots = train::count_all_slots(job, layout);
  const GroupPlaces groups(job.model, layout, topology);
  result.plan = plan_layout(job, topology, layout, slots, groups, WhenTooLarge::all);
  if (!result.plan.timed)
    throw base::spec_error("cluster.preset: " + topology.name +
                           " has no operator rates to simulate with: give --costs, or " +
                           how_to_get_rates(topology, job));
  const StageRecords records = record_all(job, layout, topology.device, slots);
  const Replays replays(replay_input(job, topology, groups, records));
  const Slowdown slowdown(options, layout);
  const auto run = [&](int step, std::int64_t replica, std::function<void(const ReplaySlice&)> observe) {
    ReplayOptions noise;
    if (options.jitter > 0 || !options.stragglers.empty())
      noise.slowdown = [&, step, replica](int stage, const Action* action) {
        return slowdown.of(step, replica, stage, action);
      };
    noise.observe = std::move(observe);
    return replays.run(noise);
  };
  const std::int64_t shown =
      options.stragglers.empty() ? 0 : slowdown.replica_of(options.stragglers.begin()->first);
  TimelineBuilder builder(result.shape);
  const Replay first = run(0, shown, [&](const ReplaySlice& slice) { builder.add(slice); });
  builder.finish(first, result.timeline, result.trace);
  if (options.jitter == 0 && options.stragglers.empty()) return result;
  // Replicas without jitter and stragglers are equal, so one represents them.
  std::set<std::int64_t> replicas;
  if (options.jitter > 0)
    for (const auto& [replica, others] : slowdown.replicas()) replicas.insert(replica);
  else replicas.insert(0);
  for (const auto& [rank, factor] : options.stragglers) replicas.insert(slowdown.replica_of(rank));
  const int steps = options.jitter > 0 ? options.steps : 1;
  check_samples(options.jitter > 0 ? layout.options.dp : static_cast<std::int64_t>(replicas.size()), steps,
                result.timeline);
  for (int step = 0; step < steps; ++step) {
    double slowest = 0;
    for (const std::int64_t replica : replicas)
      slowest = std::max(slowest, run(step, replica, {}).step_seconds);
    result.step_seconds.push_back(slowest);
  }
  return result;
}

Spread spread_of(const std::vector<double>& values) {
  Spread s;
  if (values.empty()) return s;
  const double n = static_cast<double>(values.size());
  for (const double v : values) s.mean += v / n;
  for (const double v : values) s.deviation += (v - s.mean) * (v - s.mean);
  s.deviation = values.size() > 1 ? std::sqrt(s.deviation / (n - 1)) : 0;
  s.least = *std::min_element(values.begin(), values.end()),
  s.most = *std::max_element(values.begin(), values.end());
  return s;
}

std::string simulation_text(const StepSimulation& simulation, const StepNoise& options) {
  const Plan& plan = simulation.plan;
  std::string text =
      fmt::format("{}: {} per step as planned, bubble {:.1f}% of the pipeline\n",
                  schedule_title(simulation.shape), duration(plan.time.step_seconds), 100 * plan.time.bubble);
  for (const base::LedgerPartInfo& part : base::kLedgerParts)
    if (const double seconds = plan.time.mean[part.part]; seconds > 0.0005 * plan.time.step_seconds)
      text += fmt::format("  {:<15} {:5.1f}%  {}\n", part.name, 100 * seconds / plan.time.step_seconds,
                          duration(seconds));
  if (simulation.step_seconds.empty()) return text;
  const Spread s = spread_of(simulation.step_seconds);
  std::string why = options.jitter > 0 ? fmt::format("jitter of {:g}", options.jitter) : "";
  for (const auto& [rank, factor] : options.stragglers)
    why += fmt::format("{}rank {} {:g} times as slow", why.empty() ? "" : ", ", rank, factor);
  return text +
         fmt::format("with {}: {} per step ({:+.1f}%), standard deviation {}, {} to {} in {} sampled\n", why,
                     duration(s.mean), 100 * (s.mean / plan.time.step_seconds - 1), duration(s.deviation),
                     duration(s.least), duration(s.most), simulation.step_seconds.size());
}

std::string simulation_json(const StepSimulation& simulation, const StepNoise& options) {
  using Json = nlohmann::ordered_json;
  Json out = Json::parse(plan_json(simulation.plan, 0));
  out["job"] = simulation.plan.job.name;
  out["schedule"] = parallel::to_string(simulation.shape.kind);
  out["stages"] = simulation.shape.stages;
  out["virtual_stages"] = simulation.shape.virtual_stages;
  out["microbatches"] = simulation.shape.microbatches;
  out["pipeline_seconds"] = simulation.timeline.makespan;
  if (!simulation.step_seconds.empty()) {
    const Spread s = spread_of(simulation.step_seconds);
    Json& sampled = out["sampled"] = {{"jitter", options.jitter},
                                      {"seed", options.seed},
                                      {"steps", simulation.step_seconds},
                                      {"mean_seconds", s.mean},
                                      {"deviation_seconds", s.deviation},
                                      {"least_seconds", s.least},
                                      {"most_seconds", s.most}};
    Json& stragglers = sampled["stragglers"] = Json::object();
    for (const auto& [rank, factor] : options.stragglers) stragglers[std::to_string(rank)] = factor;
  }
  return io::to_text(out) + "\n";
}

}  // namespace trainerd::core::plan
