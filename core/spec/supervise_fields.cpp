#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/spec/etcd_url.h"
#include "core/spec/field_table.h"
#include "core/spec/fields.h"
#include "core/spec/supervise.h"
#include "io/text/text.h"

namespace trainerd::core::spec {
namespace {

// A busy machine schedules threads late: with lower values every node would be lost sooner or later.
constexpr double kMinDeadSeconds = 1;
constexpr double kMaxDeadSeconds = 3600;
constexpr double kMinBeatSeconds = 0.05;
constexpr double kBeatsUntilDead = 3;
constexpr double kMaxSpares = 1 << 20;
constexpr double kMaxHangFactor = 1e6;
constexpr double kMaxHashSteps = 1e12;
constexpr double kMinSpikeWindow = 16, kMaxSpikeWindow = 1 << 16, kMaxSpikeActions = 1e9;

// Keys for several nodes' agents. Must come after the other keys of `cluster`.
void add_heartbeats(FieldTable& t, job::JobSpec& job) {
  job::SuperviseOptions& s = job.supervise;
  // The number of nodes of a preset's job is known only later.
  const bool one = job.cluster.nodes == 1 && job.cluster.preset == "local";
  const std::string one_node = "cluster.nodes is 1: there is no other node";
  t.add("cluster.failures.spares", &job.cluster.spares,
        "agents beside those of the nodes (`--spare`, or under `srun` the last nodes of the step) that wait "
        "and take the places of nodes that are lost")
      .between(0, kMaxSpares)
      .idle_if(one, one_node);
  t.add("cluster.failures.elastic", &job.cluster.elastic,
        "when a lost node has no spare, go on with the data-parallel replicas that the nodes left hold, from "
        "the newest checkpoint and with the same global batch, and grow again when a node comes; or a map "
        "with the key `replan`")
      .heads_section()
      .written_if(!job.cluster.elastic || !job.cluster.replan)
      .idle_if(one, one_node);
  t.add("cluster.failures.min_replicas", &job.cluster.min_replicas,
        "dp below which an elastic job does not go; it waits for a node instead")
      .between(1, kMaxSpares)
      .idle_if(one || !job.cluster.elastic, one ? one_node : "cluster.failures.elastic is false");
  t.add("cluster.failures.elastic.replan", &job.cluster.replan,
        "the planner chooses tp, pp and what goes with them for the nodes left, so that all of their ranks "
        "take "
        "part; a map with it means `elastic: true`")
      .written_if(job.cluster.elastic && job.cluster.replan)
      .idle_if(one || !job.cluster.elastic, one ? one_node : "cluster.failures.elastic is false");
  t.add("supervise.heartbeat", Duration{&s.heartbeat_seconds},
        "time between two signs of life that each node's agent and node 0's send each other")
      .above(0)
      .idle_if(one, one_node);
  t.add(
       "supervise.dead_after", Duration{&s.dead_after_seconds},
       "a node that sends no heartbeat for so long counts as lost: its agent is stopped, its host frozen, or "
       "the link to it cut; at least 3 heartbeats")
      .above(0)
      .idle_if(one, one_node);
  t.add(
       "supervise.coordinator", &s.coordinator,
       "etcd (3.4 or later) that says which agent leads, `etcd://host:port[,host:port...]`: the run survives "
       "the loss of node 0 too; empty: node 0's agent leads, and the run ends with it")
      .or_else("none")
      .idle_if(one, one_node);
}

/// The second name of a key; the resolved job has the primary one (compose.h).
void add_restarts(FieldTable& t, job::JobSpec& job) {
  t.add("supervise.restarts", &job.restarts, "the same key as `restarts`; give one of them")
      .between(0, kMaxRestarts)
      .not_with("restarts", "is the same key as `restarts`, which is given too: give one of them",
                Says::anything)
      .written_if(false);
}

void add_hangs(FieldTable& t, job::JobSpec& job) {
  job::SuperviseOptions& s = job.supervise;
  t.add("supervise.hang_factor", &s.hang_factor,
        "a rank counts as hung when it makes no progress for this many times the median step, or its "
        "longest recent action of the kind; the run names it and restarts all workers from memory; 0: off")
      .between(0, kMaxHangFactor);
  t.add("supervise.hang_minimum", Duration{&s.hang_minimum_seconds},
        "no rank is hung sooner; first steps, and what is outside of steps, have 12 times as long, loads 60 "
        "times")
      .above(0)
      .idle_if(s.hang_factor == 0, "supervise.hang_factor: 0 judges nothing");
}

void add_preflight(FieldTable& t, job::JobSpec& job) {
  t.add("supervise.preflight", &job.supervise.preflight,
        "before the first step: each rank checks matrix products with known results, devices of one kind and "
        "links between nodes are compared, each node writes a file to the output directory and reads it "
        "back, and clocks are compared, in under 2 s; then all replicas compute one step without an update "
        "on the same few tokens, and their results must be equal");
}

void add_devices(FieldTable& t, job::JobSpec& job) {
  using job::DevicePolicy;
  t.choice("supervise.devices", job.supervise.devices,
           {{"log", DevicePolicy::log}, {"drain", DevicePolicy::drain}, {"stop", DevicePolicy::stop}},
           "the reaction to a GPU error that the driver reports: an uncorrected memory error (ECC), an XID "
           "of the device, or a lost GPU. log: an event; drain: the run stops with its next checkpoint; "
           "stop: the run ends at once, without saving");
}

void add_replica_hashes(FieldTable& t, job::JobSpec& job) {
  job::SuperviseOptions& s = job.supervise;
  t.add(
       "supervise.hash_every", &s.hash_every,
       "steps between two comparisons of what several ranks hold alike: parameters, and optimizer states "
       "where they are not sharded. Each snapshot is compared too, and the end of the run. Each rank also "
       "hashes its own state at every step, after an update and before the next. Where hashes differ the run "
       "ends, and names the ranks and tensors; 0: never")
      .between(0, kMaxHashSteps);
}

// Keys of checks on a step before its update. These are sections, so they must come after all plain keys of
// `supervise`.
void add_judgement(FieldTable& t, job::JobSpec& job) {
  job::SuperviseOptions& s = job.supervise;
  t.add("supervise.verify.every", &s.verify_every,
        "steps between two that are computed twice, from the same state and batch, and compared before the "
        "update; where they differ a third computation decides, and the ranks are named; 0: never")
      .between(0, kMaxHashSteps);
  job::SpikesOptions& spikes = s.spikes;
  const auto lists = [&spikes](job::SpikeAction action) {
    const std::string_view word = job::kSpikeWords.at(static_cast<std::size_t>(action));
    return std::find(spikes.policy.begin(), spikes.policy.end(), word) != spikes.policy.end();
  };
  t.add("supervise.spikes.policy", &spikes.policy,
        "actions, in this order, on a step whose loss or gradients are not finite or a spike: `retry` "
        "computes it again, `skip` leaves out its update, `rollback` goes back to the last good "
        "checkpoint. When all are used up the run ends")
      .or_else("none: a value that is not finite ends the run");
  t.add(
       "supervise.spikes.score", &spikes.score,
       "a loss or gradient norm is a spike from so many robust standard deviations above the median of the "
       "latest steps on; 0: only what is not finite is. Without a policy it is an event, and the run goes on")
      .between(0, kMaxHangFactor);
  t.add("supervise.spikes.window", &spikes.window, "the latest steps that it is compared with")
      .between(kMinSpikeWindow, kMaxSpikeWindow)
      .idle_if(spikes.score == 0, "supervise.spikes.score is 0: only what is not finite is a spike");
  const auto budget = [&](const char* path, std::int64_t* value, const char* meaning, job::SpikeAction a) {
    const std::string word(job::kSpikeWords.at(static_cast<std::size_t>(a)));
    t.add(path, value, meaning)
        .between(1, kMaxSpikeActions)
        .idle_if(!lists(a), "supervise.spikes.policy has no " + word);
  };
  budget("supervise.spikes.retries", &spikes.retries, "maximum number of retries in a run",
         job::SpikeAction::retry);
  budget("supervise.spikes.skips", &spikes.skips, "maximum number of skipped steps in a run",
         job::SpikeAction::skip);
  budget("supervise.spikes.rollbacks", &spikes.rollbacks, "maximum number of rollbacks in a run",
         job::SpikeAction::rollback);
  t.choice("supervise.spikes.data", spikes.data,
           {{"again", job::RollbackData::again}, {"skip", job::RollbackData::skip}},
           "the samples of the steps that a rollback takes back: again: they are trained on again; skip: "
           "they are passed over")
      .idle_if(!lists(job::SpikeAction::rollback), "supervise.spikes.policy has no rollback");
}

/// Problem of the policy's words; empty: none.
std::string policy_problem(const std::vector<std::string>& policy) {
  for (std::size_t i = 0; i < policy.size(); ++i) {
    if (std::find(job::kSpikeWords.begin(), job::kSpikeWords.end(), policy[i]) == job::kSpikeWords.end())
      return "'" + policy[i] + "' is no action: give of retry, skip, rollback";
    if (std::find(policy.begin(), policy.begin() + static_cast<std::ptrdiff_t>(i), policy[i]) !=
        policy.begin() + static_cast<std::ptrdiff_t>(i))
      return "'" + policy[i] + "' is there twice: each action has a budget of its own";
  }
  return "";
}

}  // namespace

void add_supervise(FieldTable& t, job::JobSpec& job) {
  add_heartbeats(t, job);
  add_hangs(t, job);
  add_restarts(t, job);
  add_preflight(t, job);
  add_devices(t, job);
  add_replica_hashes(t, job);
  add_judgement(t, job);
}

std::vector<KeyProblem> supervise_problems(const job::JobSpec& job) {
  const job::SuperviseOptions& s = job.supervise;
  if (job.cluster.elastic && job.parallel.dp > 0 && job.cluster.min_replicas > job.parallel.dp)
    return {{"cluster.failures.min_replicas", std::to_string(job.cluster.min_replicas) + " is more than dp " +
                                                  std::to_string(job.parallel.dp) + " (nearest valid: " +
                                                  std::to_string(job.parallel.dp) + ")"}};
  const std::int64_t group = job.parallel.zero_group;
  const bool replicas = job.parallel.zero == 0 || (group > 0 && group < job.parallel.gradient_ranks());
  if (s.hash_every > 0 && job.optimizer.kind == job::OptimizerKind::muon && job.cluster.nodes > 1 && replicas)
    return {
        {"supervise.hash_every",
         "with optimizer muon, replicas on several nodes compute its matrix products each for themselves, "
         "and other processors or thread counts may round them otherwise (nearest valid: 0, or "
         "parallel.zero: 1)"}};
  if (const std::string problem = policy_problem(s.spikes.policy); !problem.empty())
    return {{"supervise.spikes.policy", problem}};
  const bool retries =
      std::find(s.spikes.policy.begin(), s.spikes.policy.end(), "retry") != s.spikes.policy.end();
  if (job.attention.backward == kernels::Determinism::fast && (s.verify_every > 0 || retries))
    return {
        {s.verify_every > 0 ? "supervise.verify.every" : "supervise.spikes.policy",
         std::string("with attention: fast a step that is computed again has other bits on sound hardware, "
                     "which would be called corruption (nearest valid: ") +
             (s.verify_every > 0 ? "0" : "a policy without retry") + ", or attention: deterministic)"}};
  if (!s.coordinator.empty())
    if (const std::string problem = parse_etcd_url(s.coordinator).problem; !problem.empty())
      return {{"supervise.coordinator", problem}};
  const auto out_of = [](double value, double least, double most) {
    return io::duration_text(value) + " is out of " + io::duration_text(least) + " to " +
           io::duration_text(most) + " (nearest valid: " + io::duration_text(value < least ? least : most) +
           ")";
  };
  constexpr double kMaxBeatSeconds = kMaxDeadSeconds / kBeatsUntilDead;
  if (s.heartbeat_seconds < kMinBeatSeconds || s.heartbeat_seconds > kMaxBeatSeconds)
    return {{"supervise.heartbeat", out_of(s.heartbeat_seconds, kMinBeatSeconds, kMaxBeatSeconds)}};
  if (s.dead_after_seconds < kMinDeadSeconds || s.dead_after_seconds > kMaxDeadSeconds)
    return {{"supervise.dead_after", out_of(s.dead_after_seconds, kMinDeadSeconds, kMaxDeadSeconds)}};
  const double least = kBeatsUntilDead * s.heartbeat_seconds;
  if (s.dead_after_seconds >= least) return {};
  return {{"supervise.dead_after", io::duration_text(s.dead_after_seconds) +
                                       " is less than 3 times supervise.heartbeat (" +
                                       io::duration_text(s.heartbeat_seconds) +
                                       "; nearest valid: " + io::duration_text(least) + ")"}};
}

}  // namespace trainerd::core::spec
