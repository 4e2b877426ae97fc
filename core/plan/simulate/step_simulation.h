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
  std::map<std::int64_t, double> stragglers = {};  ///< rank: factor on the planned time of its work
  int steps = 20;                                  ///< number of sampled steps with jitter
  std::uint64_t seed = 0;
};

/// One step of a job as planned, replayed event by event.
struct StepSimulation {
  Plan plan;
  parallel::ScheduleShape shape;
  parallel::Timeline timeline;  ///< of one pipeline: the first straggler's, else that of the first ranks
  io::Trace trace;              ///< of the same pipeline: work, stalls, messages and background collectives
  std::vector<double> step_seconds;  ///< of the sampled steps; empty without jitter and stragglers
};

/// Jitter is lognormal with mean 1, drawn from the seed for each step, rank and action. In every action the
/// ranks of a tensor-parallel group run at the pace of the slowest, and so do replicas that share experts
/// (ep). Other data-parallel replicas synchronise at the end of the step, so it takes as long as the slowest
/// of them. Throws SpecError for invalid options, and if
/// the topology has no rates.
StepSimulation simulate_step(const job::JobSpec& job, const parallel::Topology& topology,
                             const StepNoise& options);

struct Spread {
  double mean = 0, deviation = 0, least = 0, most = 0;
};
Spread spread_of(const std::vector<double>& values);

std::string simulation_text(const StepSimulation& simulation, const StepNoise& options);
/// The plan's JSON plus the schedule's sizes and `pipeline_seconds`; with jitter or stragglers also
/// `sampled`.
std::string simulation_json(const StepSimulation& simulation, const StepNoise& options);

}  // namespace trainerd::core::plan
