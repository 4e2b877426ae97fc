#include "core/plan/goodput/goodput.h"

#include <algorithm>
#include <cmath>

#include "core/plan/cost/checkpoint_interval.h"
#include "kernels/base/error.h"
#include "kernels/base/seconds_text.h"

namespace trainerd::core::plan {
namespace {

// Beyond these limits tests show the closed form more than a percentage point away from the simulation.
constexpr double kMaxDownPerFailure = 0.2;  // fraction of the mean time between interruptions
constexpr double kMaxWaiting = 0.25;        // fraction of all time
constexpr double kMinReplace = 10;          // multiple of an elastic job's down time

double sum(const GoodputShares& shares) {
  double all = 0;
  for (const auto& named : kNamedGoodputParts) all += shares.*named.part;
  return all;
}

void scale(GoodputShares& shares, double factor) {
  for (const auto& named : kNamedGoodputParts) shares.*named.part *= factor;
}

double rate_of_kinds(const FailureScenario& s, bool (*counts)(FailureScope)) {
  double rate = 0;
  for (const FailureKind& kind : s.kinds)
    if (counts(kind.scope)) rate += kind.per_node_second;
  return rate * static_cast<double>(s.nodes);
}

/// Mean time of a phase of `seconds` that restarts from its beginning at each failure, with failures at
/// `rate`.
double retried_seconds(double rate, double seconds) {
  return rate > 0 ? std::expm1(rate * seconds) / rate : seconds;
}

/// Scales all parts but useful by `factor`. The increase of useful is repeated work and goes to lost.
void repeat(GoodputShares& segment, double factor) {
  const double useful = segment.useful;
  scale(segment, factor);
  segment.lost += segment.useful - useful;
  segment.useful = useful;
}

/// Ends a segment (parts in seconds) with a save. Adds the failures that restore from `level` and their
/// repair.
void end_segment(GoodputShares& segment, double save, const TierPlan& level, double rate_so_far,
                 const FailureScenario& s) {
  const double rate = level.failures_per_second, inside = sum(segment), length = inside + save;
  if (rate <= 0) {
    segment.checkpoint += save;
    return;
  }
  // Tries until one succeeds: exp(rate length) - 1 of them fail, of which exp(rate save) - 1 in the save.
  const double all = retried_seconds(rate, length), saves = retried_seconds(rate, save);
  repeat(segment, (all - saves) / inside);
  segment.checkpoint += saves;
  // A copy is usable only `write_seconds` after its save: a failure before that restores the previous one.
  const double late = std::exp(rate * level.tier.write_seconds);
  repeat(segment, late);
  // A failure during a restart begins the restart again.
  const double failures = late * std::expm1(rate * length),
               phase = s.restart_seconds + level.tier.restore_seconds;
  segment.detection += failures * std::exp(rate_so_far * phase) * s.detection_seconds;
  segment.restart += failures * retried_seconds(rate_so_far, phase);
}

/// Missing nodes in the steady state.
struct NodeChain {
  double waiting = 0;           ///< fraction of time with more nodes missing than the job can run without
  double waits_per_second = 0;  ///< rate at which such waits begin
  double speed = 1;             ///< mean speed in the remaining time
  double present = 1;           ///< mean fraction of nodes present in the remaining time
  double grows_per_second = 0;  ///< rate of node returns that make the job faster
};

/// Lost nodes return independently of each other, so their number is a birth-death chain for any distribution
/// of their absence (the insensitivity of loss systems). Births come from the nodes that are present.
NodeChain node_chain(const FailureScenario& s) {
  NodeChain chain;
  const double per_node =
      rate_of_kinds(s, [](FailureScope scope) { return scope != FailureScope::process; }) /
      static_cast<double>(s.nodes);
  if (s.replace_seconds <= 0 || per_node <= 0) return chain;
  const auto allowed = static_cast<std::int64_t>(s.speed_by_missing.size()) - 1;
  const auto speed = [&](std::int64_t missing) {
    return s.speed_by_missing[static_cast<std::size_t>(missing)];
  };
  const auto births = [&](std::int64_t lost) {
    return per_node * static_cast<double>(s.nodes - std::max<std::int64_t>(0, lost - s.spares));
  };
  // Relative to the largest weight, to avoid overflow.
  std::vector<double> log_weight{0};
  for (std::int64_t lost = 1; lost <= s.spares + s.nodes; ++lost)
    log_weight.push_back(log_weight.back() +
                         std::log(births(lost - 1) * s.replace_seconds / static_cast<double>(lost)));
  const double largest = *std::max_element(log_weight.begin(), log_weight.end());
  double all = 0, running = 0, work = 0, present = 0;
  for (std::size_t lost = 0; lost < log_weight.size(); ++lost) {
    const double weight = std::exp(log_weight[lost] - largest);
    const auto missing = std::max<std::int64_t>(0, static_cast<std::int64_t>(lost) - s.spares);
    all += weight;
    if (missing > allowed) continue;
    running += weight;
    work += weight * speed(missing);
    present += weight * static_cast<double>(s.nodes - missing) / static_cast<double>(s.nodes);
    const double births_here = weight * births(static_cast<std::int64_t>(lost));
    const bool next_is_spared = static_cast<std::int64_t>(lost) < s.spares;
    // In the steady state each transition to one more missing node is matched by a return.
    if (next_is_spared) continue;
    if (missing == allowed) chain.waits_per_second += births_here;
    else if (speed(missing + 1) < speed(missing)) chain.grows_per_second += births_here;
  }
  chain.waiting = 1 - running / all;
  chain.speed = running > 0 ? work / running : 1;
  chain.present = running > 0 ? present / running : 1;
  chain.waits_per_second /= all;
  chain.grows_per_second /= all;
  return chain;
}

/// The least interval that lets one copy be written before the next save.
std::int64_t least_steps(const CheckpointTier& tier, double step_seconds) {
  const double steps = std::ceil(tier.write_seconds / step_seconds);
  return static_cast<std::int64_t>(std::clamp(steps, 1.0, static_cast<double>(kMaxScenarioSteps)));
}

std::string caveat_of(const FailureScenario& s, const std::vector<TierPlan>& tiers, const NodeChain& nodes) {
  const double rate = failures_per_second(s);
  double restore = 0;
  for (const TierPlan& level : tiers) restore = std::max(restore, level.tier.restore_seconds);
  const double down = s.detection_seconds + s.restart_seconds + restore;
  if (rate * down > kMaxDownPerFailure)
    return "the mean time between interruptions is near the time that one takes to mend: they overlap";
  if (nodes.grows_per_second > 0 && s.replace_seconds < kMinReplace * down)
    return "lost nodes are back about as soon as the job has started again without them";
  if (nodes.waiting > kMaxWaiting) return "the job waits for nodes much of the time: set more spares";
  return "";
}

}  // namespace

double failures_per_second(const FailureScenario& scenario) {
  return rate_of_kinds(scenario, [](FailureScope) { return true; });
}

void check_scenario(const FailureScenario& s) {
  std::string problems;
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) problems += (problems.empty() ? "" : "\n") + what;
  };
  const auto is_time = [](double seconds) { return std::isfinite(seconds) && seconds >= 0; };
  require(s.nodes >= 1, "a job has at least one node");
  require(std::isfinite(s.step_seconds) && s.step_seconds > 0, "the seconds of a step must be more than 0");
  for (const FailureKind& kind : s.kinds)
    require(is_time(kind.per_node_second), kind.name + ": a rate of failures must be 0 or more");
  require(is_time(s.detection_seconds) && is_time(s.restart_seconds) && is_time(s.planned_per_second) &&
              is_time(s.planned_seconds) && is_time(s.replace_seconds) && s.spares >= 0,
          "times, rates and spares must be 0 or more");
  require(!s.speed_by_missing.empty() && s.speed_by_missing.front() == 1 &&
              std::is_sorted(s.speed_by_missing.rbegin(), s.speed_by_missing.rend()) &&
              s.speed_by_missing.back() > 0 &&
              static_cast<std::int64_t>(s.speed_by_missing.size()) <= s.nodes,
          "the speed of a job falls from 1 with its missing nodes");
  require(!s.tiers.empty() && s.tiers.back().survives == FailureScope::several,
          "the last tier of checkpoints must survive every interruption");
  for (std::size_t i = 0; i < s.tiers.size(); ++i) {
    const CheckpointTier& tier = s.tiers[i];
    require(i == 0 || s.tiers[i - 1].survives < tier.survives,
            tier.name + ": a safer tier must survive more");
    require(is_time(tier.save_seconds) && is_time(tier.write_seconds) && is_time(tier.restore_seconds),
            tier.name + ": times must be 0 or more");
    require(tier.every_steps >= 0 && tier.every_steps <= kMaxScenarioSteps,
            tier.name + ": every_steps must be 0 to 10^9");
    if (!problems.empty()) continue;  // the numbers below are of those above
    const double between = static_cast<double>(tier.every_steps) * s.step_seconds;
    require(tier.every_steps == 0 || between >= tier.write_seconds,
            tier.name + ": a copy takes " + base::seconds_text(tier.write_seconds) +
                " to write, and the next is due after " + base::seconds_text(between) + ": save every " +
                std::to_string(least_steps(tier, s.step_seconds)) + " steps or more");
    for (std::size_t j = 0; j < i; ++j) {
      const std::int64_t nearer = s.tiers[j].every_steps;
      require(nearer == 0 || tier.every_steps == 0 || tier.every_steps % nearer == 0,
              tier.name + ": every " + std::to_string(tier.every_steps) +
                  " steps is not a whole multiple of " + s.tiers[j].name + "'s " + std::to_string(nearer));
    }
  }
  if (!problems.empty()) throw base::spec_error(problems);
}

namespace {

std::int64_t optimum_steps(const TierPlan& plan, double step_seconds) {
  const double steps = checkpoint_interval_seconds(plan.tier.save_seconds, plan.tier.write_seconds,
                                                   1 / plan.failures_per_second) /
                       step_seconds;
  return std::max(
      least_steps(plan.tier, step_seconds),
      static_cast<std::int64_t>(std::clamp(std::round(steps), 1.0, static_cast<double>(kMaxScenarioSteps))));
}

/// The divisor of `count`, at least `least`, whose ratio to `wanted` is nearest to 1.
std::int64_t nearest_divisor(std::int64_t count, std::int64_t wanted, std::int64_t least) {
  std::int64_t best = count;
  const auto distance = [&](std::int64_t d) {
    return std::abs(std::log(static_cast<double>(d) / static_cast<double>(wanted)));
  };
  for (std::int64_t d = 1; d * d <= count; ++d)
    if (count % d == 0)
      for (const std::int64_t divisor : {d, count / d})
        if (divisor >= least && distance(divisor) < distance(best)) best = divisor;
  return best;
}

}  // namespace

std::vector<TierPlan> plan_tiers(const FailureScenario& s) {
  std::vector<TierPlan> plans;
  for (const CheckpointTier& tier : s.tiers) plans.push_back({.tier = tier});
  for (const FailureKind& kind : s.kinds) {
    const auto survivor = std::find_if(plans.begin(), plans.end(),
                                       [&](const TierPlan& p) { return p.tier.survives >= kind.scope; });
    base::check(survivor != plans.end(), "the last tier survives everything");
    survivor->failures_per_second += kind.per_node_second * static_cast<double>(s.nodes);
  }
  std::erase_if(plans,
                [](const TierPlan& p) { return p.failures_per_second == 0 && p.tier.every_steps == 0; });
  // A given interval constrains the nearer tiers to its divisors. The remaining free tiers take multiples of
  // the nearer ones.
  std::int64_t bound = 0;
  for (auto plan = plans.rbegin(); plan != plans.rend(); ++plan) {
    std::int64_t& every = plan->tier.every_steps;
    plan->optimum = every == 0;
    if (plan->optimum && bound > 0) {
      const std::int64_t least = least_steps(plan->tier, s.step_seconds);
      if (bound < least)
        throw base::spec_error(plan->tier.name + ": a copy takes " + std::to_string(least) +
                               " steps to write, and a safer tier saves every " + std::to_string(bound) +
                               ": set that one's every_steps to at least " + std::to_string(least));
      every = nearest_divisor(bound, optimum_steps(*plan, s.step_seconds), least);
    }
    bound = every;
  }
  // A save of a safer tier also serves the nearer ones, so these save at least as often.
  std::vector<std::int64_t> wanted(plans.size(), kMaxScenarioSteps);
  for (std::size_t i = plans.size(); i-- > 0;) {
    if (plans[i].tier.every_steps > 0) continue;
    const std::int64_t safer = i + 1 < plans.size() ? wanted[i + 1] : kMaxScenarioSteps;
    wanted[i] = std::max(least_steps(plans[i].tier, s.step_seconds),
                         std::min(safer, optimum_steps(plans[i], s.step_seconds)));
  }
  std::int64_t nearer = 1;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    std::int64_t& every = plans[i].tier.every_steps;
    const std::int64_t least = least_steps(plans[i].tier, s.step_seconds);
    if (every == 0)
      every = std::max((wanted[i] + nearer / 2) / nearer, (least + nearer - 1) / nearer) * nearer;
    nearer = every;
  }
  return plans;
}

GoodputEstimate closed_form_goodput(const FailureScenario& s) {
  check_scenario(s);
  std::vector<TierPlan> levels = plan_tiers(s);
  const NodeChain nodes = node_chain(s);
  for (TierPlan& level : levels) level.failures_per_second *= nodes.present;
  GoodputEstimate estimate;
  estimate.caveat = caveat_of(s, levels, nodes);

  GoodputShares segment;
  const double first =
      levels.empty() ? 1 : static_cast<double>(levels.front().tier.every_steps) * s.step_seconds;
  segment.useful = first;
  segment.reduced = nodes.speed > 0 ? first * (1 / nodes.speed - 1) : 0;
  double save = 0, rate = 0;
  std::int64_t every = levels.empty() ? 0 : levels.front().tier.every_steps;
  for (const TierPlan& level : levels) {
    scale(segment, static_cast<double>(level.tier.every_steps) / static_cast<double>(every));
    every = level.tier.every_steps;
    rate += level.failures_per_second;
    // A save of a safer tier replaces the save of the nearer ones.
    end_segment(segment, std::max(0.0, level.tier.save_seconds - save), level, rate, s);
    save = std::max(save, level.tier.save_seconds);
  }
  const CheckpointTier& safest = s.tiers.back();
  const double again = retried_seconds(rate, s.restart_seconds + safest.restore_seconds);

  const double waiting = std::max(0.0, nodes.waiting - nodes.waits_per_second * s.detection_seconds);
  const double grow_save = nodes.grows_per_second * safest.save_seconds,
               grow = nodes.grows_per_second * again;
  scale(segment, std::max(0.0, 1 - waiting - grow_save - grow) / sum(segment));
  segment.waiting += waiting;
  segment.checkpoint += grow_save;
  segment.restart += grow;
  segment.planned = sum(segment) * s.planned_per_second * (safest.save_seconds + s.planned_seconds + again);
  scale(segment, 1 / sum(segment));
  estimate.shares = segment;
  return estimate;
}

}  // namespace trainerd::core::plan
