#include <utility>

#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "core/spec/machines.h"
#include "io/text/text.h"
#include "kernels/base/error.h"

// Part of the run (run.h): an elastic job continues with fewer nodes if one is lost without a spare, and with
// more when one joins. Each size is its own Run (RunSeries) that starts from the newest checkpoint. The
// agents and their connections stay; the workers start anew with another layout.

namespace trainerd::core::run {
namespace {

// Time limit for snapshots under way to reach the disk.
constexpr double kShrinkSeconds = 60;

std::string size_text(const JobSize& size) {
  const job::JobSpec& job = size.job;
  const parallel::ParallelOptions& p = job.parallel;
  const std::string nodes = std::to_string(job.cluster.nodes) + (job.cluster.nodes == 1 ? " node" : " nodes");
  if (size.layout.empty()) return nodes + " and dp " + std::to_string(p.dp);
  return nodes + ", tp " + std::to_string(p.tp) + (p.cp > 1 ? ", cp " + std::to_string(p.cp) : "") + ", pp " +
         std::to_string(p.pp) + (p.ep > 1 ? ", ep " + std::to_string(p.ep) : "") +
         (p.whole_experts() ? ", etp 1" : "") + " and dp " + std::to_string(p.dp);
}

}  // namespace

/// Throws CapacityError if the smallest size does not fit. With the fewest replicas a rank needs the most
/// memory, so larger sizes fit too.
void Run::check_smallest() const {
  if (!series_.whole.cluster.elastic || job_.cluster.nodes < series_.whole.cluster.nodes) return;
  const JobSize smallest = series_.sizes.smallest();
  if (smallest.job.cluster.nodes == series_.whole.cluster.nodes)
    throw base::capacity_error(
        std::string("cluster.failures.elastic: the job has no smaller size: ") +
        (series_.whole.cluster.replan
             ? "no layout fits fewer nodes with cluster.failures.min_replicas"
             : "its replicas (tp x cp x pp ranks, and as many as share experts) do not fit on fewer nodes, "
               "or cluster.failures.min_replicas is its dp; `elastic: {replan: true}` lets the planner "
               "choose another tp, pp and ep") +
        "; leave it out");
  try {
    plan_world(smallest.job, spec::job_topology(smallest.job), 0);
  } catch (const base::CapacityError& error) {
    throw base::capacity_error(
        "cluster.failures.elastic: on " + size_text(smallest) +
        ", which cluster.failures.min_replicas allows, the job does not fit: " + error.what());
  }
  log::info("elastic: the job fits on {} at the least", size_text(smallest));
}

/// The size for the nodes that are left.
std::optional<JobSize> Run::size_of_the_rest() const {
  return series_.sizes.on(membership_.nodes() - std::ssize(away_) + std::ssize(back_));
}

/// True if the run can continue without the lost nodes that have no spare.
bool Run::shrinks() const {
  if (!series_.whole.cluster.elastic || stop_ || killed_ || lost_node_ || back_ == away_) return false;
  return size_of_the_rest().has_value();
}

/// Prepares the next, smaller size. The ranks of all nodes have ended. Waits until the saves under way are on
/// the disk, except those that need a lost node.
Run::Next Run::shrink() {
  give_up_saves_of_lost();
  if (job_.supervise.hash_every > 0) drop_saves_after(trusted_step());
  series_.trusted_step = trusted_step();
  cancel_dropped();
  if (!finish_saves(kShrinkSeconds)) {
    log::error("snapshots that are under way do not reach the disk");
    return killed_ ? Next::stop : Next::failure;
  }
  const auto smaller = size_of_the_rest();
  if (!smaller || stop_ || killed_ || lost_node_) return killed_ ? Next::stop : Next::failure;
  series_.nodes = smaller->job.cluster.nodes, series_.layout = smaller->layout;
  record_begin();
  notify(io::NoticeKind::node,
         attempt_->failure()->message + "; the run goes on with " + size_text(*smaller));
  resizes_ = true;
  return Next::resize;
}

/// If enough agents have joined for a larger size, stops the smaller run after the present step and saves.
void Run::grow_if_possible() {
  if (!membership_.leads() || membership_.nodes() == membership_.job_nodes() || membership_.spares() == 0 ||
      devices_.draining() || stop_ || killed_ || attempt_->failure() || !sinks_started_ || saves_fail_ ||
      !attempt_->all_ready() || attempt_->all_finished_here())
    return;
  const auto larger = series_.sizes.on(membership_.nodes() + membership_.spares());
  if (!larger || larger->job.cluster.nodes <= membership_.nodes()) return;
  series_.nodes = larger->job.cluster.nodes, series_.layout = larger->layout;
  grows_ = true;
  stop_ = StopRequest{.reason = "a node that has come", .exit_signal = 0};
  notify(io::NoticeKind::node,
         "a node has come: the run goes on with " + size_text(*larger) + " after this step");
  attempt_->send_all(Stop{});
}

/// Ends this size. The other nodes end theirs when `Resize` arrives.
AgentResult Run::leave_to_next_size() {
  resizes_ = true;
  keep_states();
  if (series_.from_disk) series_.survived.clear();
  // Of every node: the leader may be lost before it says more.
  series_.folders = folders_;
  series_.faults_done = start_.faults_done;
  if (membership_.leads()) {
    if (grows_)
      record(io::NoticeKind::stop,
             "stopped after step " + std::to_string(step_) + " to go on with more nodes");
    if (rollback_ && series_.returns_to)
      record(io::NoticeKind::stop,
             "stopped after step " + std::to_string(step_) + " to go back to " +
                 (*series_.returns_to > 0 ? "step " + std::to_string(*series_.returns_to)
                                          : std::string("the start")));
    // After a rollback no agent keeps states of the steps that are done again.
    membership_.send(Resize{series_.from_disk || rollback_.has_value()});
    membership_.resize(*series_.nodes, attempt_->number() + 1, series_.layout);
  }
  // A size that never began gets no report.
  if (sinks_started_)
    finish(rollback_ ? "goes back to an earlier checkpoint" : "goes on with another number of nodes");
  return {step_, 0};
}

}  // namespace trainerd::core::run
