#include "core/plan/goodput/goodput_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "kernels/base/error.h"
#include "kernels/tensor/rng.h"

namespace trainerd::core::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kWeek = 7 * 24 * 3600;
constexpr double kMaxWeeks = 10'000;
constexpr std::int64_t kMaxRuns = 1'000'000;

/// Random numbers of one run, by counter.
class Draws {
 public:
  Draws(std::uint64_t seed, std::int64_t run)
      : key_(kernels::hash_name("failures", seed)), run_(static_cast<std::uint64_t>(run)) {}
  /// Uniform in (0, 1].
  double uniform() {
    const auto bits = kernels::philox(key_, draw_++, run_);
    const std::uint64_t wide = (static_cast<std::uint64_t>(bits[0]) << 32) | bits[1];
    return static_cast<double>((wide >> 11) + 1) * 0x1p-53;
  }
  double exponential() { return -std::log(uniform()); }

 private:
  std::uint64_t key_, run_, draw_ = 0;
};

/// A tier's copies: the newest usable one, and one that is being written.
struct Copies {
  TierPlan plan;
  double work = 0;  // seconds of useful training in the copy
  double writing_work = 0, counts_at = kNever;
};

class Run {
 public:
  Run(const FailureScenario& s, const std::vector<TierPlan>& plans, double horizon, Draws draws)
      : s_(s), horizon_(horizon), draws_(draws) {
    for (const TierPlan& plan : plans) tiers_.push_back({.plan = plan});
    for (const FailureKind& kind : s.kinds)
      (kind.scope == FailureScope::process ? process_rate_ : node_rate_) += kind.per_node_second;
    patience_ = draws_.exponential();
    if (s.planned_per_second > 0) next_planned_ = draws_.exponential() / s.planned_per_second;
  }

  void run() {
    while (now_ < horizon_) train();
    for (const auto& named : kNamedGoodputParts) seconds.*named.part /= horizon_;
  }

  GoodputShares seconds;  // by part; `run` turns them into fractions
  std::int64_t failures = 0, planned = 0;

 private:
  std::int64_t missing() const {
    return std::max<std::int64_t>(0, static_cast<std::int64_t>(away_.size()) - s_.spares);
  }
  std::int64_t allowed() const { return static_cast<std::int64_t>(s_.speed_by_missing.size()) - 1; }
  double speed_at(std::int64_t missing) const {
    return s_.speed_by_missing[static_cast<std::size_t>(missing)];
  }

  void take_back_nodes() {
    while (!away_.empty() && away_.front() <= now_) away_.pop_front();
  }

  /// Advances wall time by `seconds_long`. On a failure it stops early, returns true and sets `struck_`.
  bool advance(double seconds_long, GoodputPart part, bool processes_run) {
    double left = std::min(seconds_long, horizon_ - now_);
    while (left > 0) {
      const double rate =
          (node_rate_ + (processes_run ? process_rate_ : 0)) * static_cast<double>(s_.nodes - missing());
      const double until_failure = rate > 0 ? patience_ / rate : kNever;
      const double until_node = away_.empty() ? kNever : std::max(0.0, away_.front() - now_);
      const double go = std::min({left, until_failure, until_node});
      now_ += go;
      left -= go;
      seconds.*part += go;
      patience_ -= go < until_failure ? go * rate : patience_;
      if (go == until_node) now_ = std::max(now_, away_.front());
      take_back_nodes();
      if (go == until_failure) {
        strike(processes_run);
        return true;
      }
    }
    return false;
  }

  void strike(bool processes_run) {
    patience_ = draws_.exponential();
    double at = draws_.uniform() * (node_rate_ + (processes_run ? process_rate_ : 0));
    struck_ = FailureScope::process;
    for (const FailureKind& kind : s_.kinds) {
      if (kind.per_node_second == 0 || (kind.scope == FailureScope::process && !processes_run)) continue;
      struck_ = kind.scope;
      if ((at -= kind.per_node_second) <= 0) break;
    }
    ++failures;
    if (struck_ != FailureScope::process && s_.replace_seconds > 0)
      away_.push_back(now_ + s_.replace_seconds);
  }

  /// Rolls back to the newest copy that survives a failure of this scope. Returns the seconds needed to read
  /// it.
  double roll_back(FailureScope scope) {
    double newest = 0, restore = s_.tiers.back().restore_seconds;
    for (auto tier = tiers_.rbegin(); tier != tiers_.rend(); ++tier) {
      if (tier->plan.tier.survives < scope || tier->work < newest) continue;
      newest = tier->work;
      restore = tier->plan.tier.restore_seconds;
    }
    seconds.lost += work_ - newest;
    seconds.useful -= work_ - newest;
    work_ = newest;
    // A restored copy passes through every nearer tier.
    for (Copies& tier : tiers_) tier.work = std::min(tier.work, newest);
    for (Copies& tier : tiers_)
      if (tier.plan.tier.survives < scope) tier.work = newest;
    return restore;
  }

  void settle(Copies& tier) const {
    if (tier.counts_at > now_) return;
    tier.work = tier.writing_work;
    tier.counts_at = kNever;
  }

  /// Runs from a failure until training continues.
  void recover() {
    for (Copies& tier : tiers_) {
      settle(tier);
      tier.counts_at = kNever;  // an unfinished write is lost with the job
    }
    for (;;) {
      FailureScope scope = struck_;
      // Further failures in this time are detected and repaired together with the first.
      for (double left = s_.detection_seconds; left > 0 && now_ < horizon_;) {
        const double before = now_;
        const bool another = advance(left, &GoodputShares::detection, false);
        left -= now_ - before;
        if (another) scope = std::max(scope, struck_);
        else break;
      }
      while (missing() > allowed() && now_ < horizon_)
        if (advance(away_.front() - now_, &GoodputShares::waiting, false)) scope = std::max(scope, struck_);
      const double restore = roll_back(scope);
      if (!start_again(restore, &GoodputShares::restart)) return;
    }
  }

  /// True if a failure interrupts it.
  bool start_again(double restore_seconds, GoodputPart part) {
    speed_ = speed_at(std::min(missing(), allowed()));
    return advance(s_.restart_seconds + restore_seconds, part, true);
  }

  /// Saves to every tier up to `last`. True if a failure interrupts it.
  bool save(std::size_t last, double save_seconds, GoodputPart part) {
    for (std::size_t i = 0; i <= last && i < tiers_.size(); ++i)
      if (tiers_[i].counts_at != kNever && tiers_[i].counts_at > now_ &&
          advance(tiers_[i].counts_at - now_, part, true))
        return true;
    if (advance(save_seconds, part, true)) return true;
    for (std::size_t i = 0; i <= last && i < tiers_.size(); ++i) {
      settle(tiers_[i]);
      tiers_[i].writing_work = work_;
      tiers_[i].counts_at = now_ + tiers_[i].plan.tier.write_seconds;
      settle(tiers_[i]);
    }
    return false;
  }

  /// Saves and restarts without lost work: for a planned interruption, or to take nodes back in.
  bool pause(double standstill, GoodputPart saving, GoodputPart down) {
    const CheckpointTier& safest = s_.tiers.back();
    if (advance(safest.save_seconds, saving, true)) return true;
    for (Copies& tier : tiers_) {  // this save supersedes an unfinished write
      tier.work = work_;
      tier.counts_at = kNever;
    }
    return advance(standstill, down, true) || start_again(safest.restore_seconds, down);
  }

  void train() {
    base::check(missing() <= allowed(), "a job that trains has the nodes it needs");
    if (speed_at(missing()) > speed_) {
      if (pause(0, &GoodputShares::checkpoint, &GoodputShares::restart)) recover();
      return;
    }
    // Saves of safer tiers coincide with saves of the first tier.
    const double every = first_every_seconds();
    const double until = tiers_.empty() ? kNever : (std::floor(work_ / every + kSlack) + 1) * every - work_;
    const double until_node = missing() > 0 ? away_.front() - now_ : kNever;
    const double wall =
        std::min({until / speed_, std::max(0.0, next_planned_ - now_), until_node, horizon_ - now_});
    const double before = now_;
    const bool failed = advance(wall, &GoodputShares::useful, true);
    const double gone = now_ - before;
    seconds.useful -= gone * (1 - speed_);
    seconds.reduced += gone * (1 - speed_);
    work_ += gone * speed_;
    if (failed) return recover();
    if (now_ >= next_planned_) {
      ++planned;
      const bool interrupted = pause(s_.planned_seconds, &GoodputShares::planned, &GoodputShares::planned);
      next_planned_ = now_ + draws_.exponential() / s_.planned_per_second;
      if (interrupted) recover();
      return;
    }
    if (wall == until / speed_ && now_ < horizon_) save_due();
  }

  double first_every_seconds() const {
    return tiers_.empty() ? kNever
                          : static_cast<double>(tiers_.front().plan.tier.every_steps) * s_.step_seconds;
  }

  void save_due() {
    const double first = first_every_seconds();
    work_ = std::round(work_ / first) * first;
    std::size_t last = 0;
    double save_seconds = 0;
    for (std::size_t i = 0; i < tiers_.size(); ++i) {
      const auto every = tiers_[i].plan.tier.every_steps / tiers_.front().plan.tier.every_steps;
      if (std::llround(work_ / first) % every != 0) break;
      last = i;
      save_seconds = std::max(save_seconds, tiers_[i].plan.tier.save_seconds);
    }
    if (save(last, save_seconds, &GoodputShares::checkpoint)) recover();
  }

  static constexpr double kSlack = 1e-9;  // fraction of a save interval, for rounding of summed seconds

  const FailureScenario& s_;
  double horizon_;
  Draws draws_;
  std::vector<Copies> tiers_;
  double process_rate_ = 0, node_rate_ = 0;  // per node
  double now_ = 0, work_ = 0, speed_ = 1;
  double patience_ = 0;  // what remains, until the next failure, of an exponential with mean 1
  double next_planned_ = kNever;
  std::deque<double> away_;  // return time of each lost node, in order
  FailureScope struck_ = FailureScope::process;
};

void check_options(const SimulationOptions& o) {
  if (!(o.weeks > 0 && o.weeks <= kMaxWeeks))
    throw base::spec_error("--weeks: must be more than 0 and at most " +
                           std::to_string(std::llround(kMaxWeeks)));
  if (o.runs < 2 || o.runs > kMaxRuns)
    throw base::spec_error("--runs: must be 2 to " + std::to_string(kMaxRuns) +
                           ", or there is no confidence interval");
}

/// Refuses simulations that would take minutes: an event takes about 0.1 us of processor time.
void check_events(const FailureScenario& s, const std::vector<TierPlan>& plans, const SimulationOptions& o) {
  constexpr double kMaxEvents = 3e8;
  double interruptions = s.planned_per_second;
  for (const FailureKind& kind : s.kinds)
    interruptions += kind.per_node_second * static_cast<double>(s.nodes);
  // An interval that follows from rare failures may be longer: then none of them are expected either.
  const bool given = !plans.empty() && !plans.front().optimum;
  const double apart = s.step_seconds * static_cast<double>(given ? plans.front().tier.every_steps : 1);
  if (apart > o.weeks * kWeek)
    throw base::spec_error(fmt::format(
        "--weeks: {} takes {:.4g} weeks, and {:.4g} are simulated: give --weeks {:.4g} or more",
        given ? "a save interval" : "a step", apart / kWeek, o.weeks, std::ceil(10 * apart / kWeek)));
  const double saves =
      plans.empty() ? 0 : 1 / (static_cast<double>(plans.front().tier.every_steps) * s.step_seconds);
  const double seconds = o.weeks * kWeek * static_cast<double>(o.runs);
  if ((interruptions + saves) * seconds <= kMaxEvents) return;
  throw base::spec_error(
      fmt::format("{} runs of {:.4g} weeks are {:.3g} interruptions and {:.3g} saves, and at most {:.3g} are "
                  "simulated: make "
                  "{}, or give fewer --weeks or --runs",
                  o.runs, o.weeks, interruptions * seconds, saves * seconds, kMaxEvents,
                  interruptions > saves ? "failures rarer" : "the time between saves longer"));
}

}  // namespace

SimulatedGoodput simulate_goodput(const FailureScenario& scenario, const SimulationOptions& options) {
  check_scenario(scenario);
  check_options(options);
  const std::vector<TierPlan> plans = plan_tiers(scenario);
  check_events(scenario, plans, options);
  const double n = static_cast<double>(options.runs);
  SimulatedGoodput result;
  std::vector<double> useful;
  for (std::int64_t i = 0; i < options.runs; ++i) {
    Run run(scenario, plans, options.weeks * kWeek, Draws(options.seed, i));
    run.run();
    for (const auto& named : kNamedGoodputParts) result.shares.*named.part += run.seconds.*named.part / n;
    result.interruptions_per_run += static_cast<double>(run.failures) / n;
    result.planned_per_run += static_cast<double>(run.planned) / n;
    useful.push_back(run.seconds.useful);
  }
  double squares = 0;
  for (const double share : useful)
    squares += (share - result.shares.useful) * (share - result.shares.useful);
  const double half = 1.96 * std::sqrt(squares / (n - 1) / n);
  result.mean_low = result.shares.useful - half;
  result.mean_high = result.shares.useful + half;
  std::sort(useful.begin(), useful.end());
  const auto quantile = [&](double q) { return useful[static_cast<std::size_t>(q * (n - 1) + 0.5)]; };
  result.run_low = quantile(0.05);
  result.run_high = quantile(0.95);
  return result;
}

}  // namespace trainerd::core::plan
