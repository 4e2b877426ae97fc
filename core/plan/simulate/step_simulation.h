#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/plan/predict/plan.h"
#include "io/records/trace.h"
#include "parallel/schedule/timeline.h"

namespace trainerd::core::plan {

struct StepNoise {
  double jitter = 0;  ///< coefficient of variation of the time of each rank's work in each action
  std::map<std::int64_t, double> stragglers = {};  ///< ranks whose work takes a multiple of the plan's
  int steps = 20;                                  ///< that are sampled, with either of them
  std::uint64_t seed = 0;
};

/// One step of a job as planned, replayed event by event.
struct StepSimulation {
  Plan plan;
  parallel::ScheduleShape shape;
  parallel::Timeline timeline;       ///< of one pipeline: the first straggler's, else that of the first ranks
  io::Trace trace;                   ///< of the same: work, stalls, messages and what runs behind the work
  std::vector<double> step_seconds;  ///< of the sampled steps; none without jitter and stragglers
};

/// Jitter is lognormal with a mean of 1, drawn from the seed for each step, rank and action; the ranks of a
/// tensor-parallel group go at the pace of the slowest in every action. Data-parallel replicas meet at the
/// end of the step: it takes as long as the slowest of them. Throws SpecError for options that are none, and
/// where the topology has no rates.
StepSimulation simulate_step(const job::JobSpec& job, const parallel::Topology& topology,
                             const StepNoise& options);

struct Spread {
  double mean = 0, deviation = 0, least = 0, most = 0;
};
Spread spread_of(const std::vector<double>& values);

std::string simulation_text(const StepSimulation& simulation, const StepNoise& options);
/// That of the plan, with the schedule's sizes, `pipeline_seconds`, and `sampled` with jitter or stragglers.
std::string simulation_json(const StepSimulation& simulation, const StepNoise& options);

}  // namespace trainerd::core::plan
