#include "core/run/agent/agent.h"

#include <exception>
#include <memory>
#include <span>

#include "core/run/agent/elastic.h"
#include "core/run/agent/run.h"
#include "core/run/coordinator/etcd_coordinator.h"
#include "core/run/log/log.h"
#include "core/run/nodes/state_choice.h"
#include "core/run/stop/early_stop.h"
#include "core/run/stop/limit_alarm.h"
#include "core/spec/etcd_url.h"
#include "io/checkpoint/tiers.h"
#include "io/hash/hash.h"
#include "io/text/text.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/cpu/cpu_backend.h"

namespace trainerd::core::run {

namespace {

/// The options for the job at this size, adapted to this machine.
AgentOptions options_here(const AgentOptions& options, const job::JobSpec& job,
                          const Membership& membership) {
  AgentOptions here = options;
  here.job = job;
  // The workers' job: the node with the least capable CPU limits the instruction set of all nodes.
  if (membership.job_nodes() > 1 && options.job.device != job::DeviceChoice::cuda &&
      membership.isa() < kernels::detect_cpu(1, job::most_isa(options.job)).isa)
    here.job.isa = job::choice_of(membership.isa());
  return here;
}

/// Etcd, if the job names one.
std::shared_ptr<Coordinator> coordinator_of(const job::JobSpec& job) {
  if (job.supervise.coordinator.empty()) return nullptr;
  const std::string owner = io::tier_owner(job.name, job.output);
  return make_etcd_coordinator({.members = spec::parse_etcd_url(job.supervise.coordinator).endpoints,
                                .run = io::xxh3_hex(std::as_bytes(std::span(owner))),
                                .every_seconds = job.supervise.heartbeat_seconds,
                                .dead_seconds = job.supervise.dead_after_seconds});
}

MembershipOptions membership_of(const AgentOptions& options, RunSeries& series) {
  MembershipOptions membership = *options.membership;
  membership.lead.coordinator = coordinator_of(options.job);
  membership.lead.wait_seconds = options.job.checkpoint.partner_wait_seconds;
  membership.lead.size_of = [&series](std::int64_t nodes) -> LeadOptions::Size {
    const auto smaller = series.sizes.on(nodes);
    return smaller ? LeadOptions::Size{smaller->job.cluster.nodes, smaller->layout} : LeadOptions::Size{};
  };
  membership.show_state = [&series](const ShowState& m) { return shown_states(m.number, series.survived); };
  membership.forget_state = [&series] { series.survived.clear(); };
  return membership;
}

/// Runs the job at one size after the other, until it is over or the leader is lost.
AgentResult run_with(const AgentOptions& options, Membership& membership, RunSeries& series) {
  if (membership.over()) return {0, membership.end()->stop_signal};
  try {
    for (;; series.first = false) {
      const auto job = job_on(options.job, membership.nodes(), membership.layout());
      base::check(job.has_value(), "the leader chooses a size that the job has");
      arm_time_limit(options.deadline);
      AgentOptions here = options_here(options, *job, membership);
      // An agent that takes the lead over continues the existing run, also if it was started with --fresh.
      const bool begins = series.first && membership.lead_moved().empty();
      here.fresh = options.fresh && begins;
      if (options.fresh && series.first && !begins)
        log::warn("--fresh is passed over: {}", membership.lead_moved());
      // Before training there is nothing to save: a signal to any agent ends it, and with it the run.
      std::optional<EarlyStop> early;
      early.emplace(options.signal_fd,
                    [&](const StopRequest& stop) { membership.stop_early(stop, options.leave); });
      Run run(here, membership, series);
      run.prepare();
      early.reset();
      const AgentResult result = run.run();
      if (!run.resizes()) {
        membership.finish({.stop_signal = result.stop_signal});
        return result;
      }
      if (!membership.leads()) membership.await_resize(options.signal_fd);
      if (membership.over()) return {0, membership.end()->stop_signal};
    }
  } catch (const LeaderLost&) {
    throw;
  } catch (const Excluded&) {
    membership.abandon();
    throw;
  } catch (const LeadLost& error) {
    // The follower has seen the mark of a later leader.
    if (!membership.leads()) membership.lose_leader(error.what());
    membership.abandon();
    throw;
  } catch (const std::exception& error) {
    membership.finish(end_by(error));
    throw;
  }
}

/// The options for joining the run again under another leader. Throws CommError if no restarts are left.
MembershipOptions next_place(MembershipOptions place, const LeaderLost& lost, RunSeries& series) {
  if (!series.restarts.take(base::monotonic_seconds()))
    throw base::comm_error(std::string(lost.what()) + "; this agent was started again " +
                           std::to_string(series.restarts.taken()) +
                           (series.restarts.taken() == 1 ? " time" : " times") +
                           " within 10 minutes (restarts: " + std::to_string(series.whole.restarts) + ")");
  place.nodes.node = lost.node;
  place.spare = lost.spare;
  place.lead.lost = lost.what();
  place.lead.lost_epoch = lost.epoch;
  place.lead.folders = series.folders;
  place.lead.faults_done = series.faults_done;
  series.first = false;
  log::warn("{}; this agent waits for another that leads", lost.what());
  return place;
}

/// How this agent joins the run again that has excluded it: with its number, in whose place another may be.
/// Throws CommError when it has done so too often.
MembershipOptions place_again(MembershipOptions place, const Excluded& why, RunSeries& series) {
  if (!series.restarts.take(base::monotonic_seconds()))
    throw base::comm_error(std::string(why.what()) + "; it does not join again: restarts (" +
                           std::to_string(series.whole.restarts) + ") within 10 minutes are used up");
  const double wait = series.whole.checkpoint.partner_wait_seconds;
  place.nodes.node = why.node;
  place.spare = why.spare;
  place.again = true;
  place.timeout_seconds = wait;
  place.lead.folders = {};
  place.lead.faults_done = series.faults_done;
  // The others went on: what is in its memory is of no use to them.
  series.survived.clear();
  series.folders.clear();
  series.first = false;
  log::warn("{}; this agent tries to join again for up to {} (checkpoint.partner.wait)", why.what(),
            io::duration_text(wait));
  return place;
}

/// With a coordinator the run goes on when its leader is lost.
AgentResult run_led(const AgentOptions& options, RunSeries& series) {
  MembershipOptions place = membership_of(options, series);
  for (;;) {
    try {
      arm_time_limit(options.deadline);
      Membership membership(place, options.job, options.signal_fd);
      return run_with(options, membership, series);
    } catch (const LeaderLost& lost) {
      place = next_place(place, lost, series);
    } catch (const Excluded& excluded) {
      place = place_again(place, excluded, series);
    }
  }
}

}  // namespace

AgentResult run_agent(const AgentOptions& options) {
  RunSeries series{.whole = options.job,
                   .restarts = RestartBudget(options.job.restarts),
                   .sizes = JobSizes(options.job, options.rates)};
  try {
    if (options.membership) return run_led(options, series);
    Membership alone;
    return run_with(options, alone, series);
  } catch (const std::exception& error) {
    options.log->add("error", error.what());
    options.log->finish();
    throw;
  }
}

}  // namespace trainerd::core::run
