#include <utility>

#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "io/text/text.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

// Part of the run (run.h): a spare, or a lost node's own agent in a new process, takes the lost node's place.

namespace trainerd::core::run {

/// True if the run can continue once the lost node is replaced. Not before all ranks were ready once, nor at
/// the end.
bool Run::may_return(std::int64_t) const {
  const parallel::ClusterOptions& cluster = series_.whole.cluster;
  return membership_.leads() &&
         (partner_ || cluster.spares > 0 || cluster.elastic || membership_.coordinated()) &&
         job_.restarts > 0 && series_.was_ready && !killed_ && (!stop_ || grows_) && !lost_node_ &&
         (!attempt_->all_finished_here() || grows_);
}

/// Whether the agent of a node that counts as lost joins the run again: where its place may be taken again.
bool Run::may_join_again() const {
  const parallel::ClusterOptions& cluster = series_.whole.cluster;
  return (partner_ || cluster.spares > 0 || cluster.elastic || membership_.coordinated()) &&
         job_.restarts > 0 && series_.was_ready && !killed_ && !stop_;
}

void Run::lose_for_now(std::int64_t node, const std::string& why) {
  const std::string name = membership_.name_of(node);
  away_.insert(node);
  back_.erase(node);
  held_.erase(node);
  fail_without(node, why);
  const bool taken = membership_.expect(node);
  record_nodes();
  if (!taken) return;
  back_.insert(node);
  report_nodes(name + " was lost after step " + std::to_string(step_) + ": " + membership_.name_of(node) +
               " takes its place");
}

/// Fails the attempt because of the lost node; a restart is allowed, with the node replaced.
void Run::fail_without(std::int64_t node, const std::string& why) {
  attempt_->set_node_state(node, io::RankState::dead);
  const std::string lost = membership_.name_of(node) + " was lost after step " + std::to_string(step_);
  log::warn("{}", lost);
  fail({base::ErrorKind::comm, lost + ": " + why, 1, true});
}

std::string Run::names_of(const std::set<std::int64_t>& nodes) const {
  std::string names;
  for (const std::int64_t node : nodes) names += (names.empty() ? "" : ", ") + membership_.name_of(node);
  return names;
}

void Run::record_nodes() {
  if (!membership_.leads() || membership_.job_nodes() == 1) return;
  // The previous leader was lost too, but could not count itself.
  const std::int64_t leaders = membership_.lead_moved().empty() ? 0 : 1;
  sinks_.each(&io::MetricsSink::on_nodes,
              io::NodesRecord{membership_.spares(), membership_.lost() + leaders});
}

/// Gives up saves that wait for some node's shards. A checkpoint whose shards are all written is still
/// completed.
void Run::give_up_incomplete_saves() {
  for (const std::int64_t step : parts_.incomplete()) drop_save(step);
}

void Run::give_up_saves_of_lost() {
  give_up_incomplete_saves();
  if (durable_ && durable_->copying() != nullptr) drop_durable("a node is lost");
}

/// Waits until all lost nodes are replaced. Returns false if they are not.
bool Run::await_return() {
  const double wait = job_.checkpoint.partner_wait_seconds, end = base::monotonic_seconds() + wait;
  give_up_saves_of_lost();
  const auto missing = [this] {
    std::set<std::int64_t> nodes = away_;
    for (const std::int64_t node : back_) nodes.erase(node);
    return nodes;
  };
  if (const auto nodes = missing(); !nodes.empty()) {
    const std::string text = names_of(nodes) + (nodes.size() == 1 ? " is" : " are") + " waited for up to " +
                             io::duration_text(wait) + " (checkpoint.partner.wait): start its agent again" +
                             (job_.cluster.spares > 0 ? ", or a spare's" : "");
    if (sinks_started_) notify(io::NoticeKind::warning, text);
    else log::warn("{}", text);
  }
  while (!missing().empty() && !killed_ && !lost_node_ && !stop_) {
    const double left = end - base::monotonic_seconds();
    if (left <= 0) break;
    wait_for_events(left);
  }
  if (missing().empty() && !killed_ && !lost_node_ && !stop_) {
    log::info("{} {} there again", names_of(away_), away_.size() == 1 ? "is" : "are");
    away_.clear();
    back_.clear();
    return true;
  }
  lost_node_ = true;
  if (!killed_ && !stop_)
    fail({base::ErrorKind::comm,
          attempt_->failure()->message + "; it did not come back within " + io::duration_text(wait) +
              " (checkpoint.partner.wait)",
          2});
  return false;
}

}  // namespace trainerd::core::run
