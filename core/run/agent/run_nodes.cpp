#include <utility>

#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "io/text/text.h"
#include "kernels/base/error.h"

// Part of the run (run.h): messages and events of other nodes.

namespace trainerd::core::run {

void Run::on_node_event(Membership::Event event) {
  switch (event.what) {
    case Membership::Event::What::message:
      return std::visit(
          [&](auto&& message) { on_message(event.node, std::forward<decltype(message)>(message)); },
          *std::move(event.message));
    case Membership::Event::What::returned:
      if (away_.contains(event.node)) back_.insert(event.node);
      if (!event.text.empty()) report_nodes(event.text);
      return;
    case Membership::Event::What::stop: {
      const StopRequest& request = std::get<StopAsked>(*event.message).request;
      return request_stop({request.reason + " at " + event.text, request.exit_signal});
    }
    case Membership::Event::What::busy: return on_busy(event.node, event.seconds);
    case Membership::Event::What::spares:
      record_nodes();
      report_nodes(event.text);
      return grow_if_possible();
    case Membership::Event::What::coordinator:
      if (sinks_started_) return notify(io::NoticeKind::warning, event.text);
      return warn_early(event.text);
    case Membership::Event::What::lead_lost: return on_lost_lead(membership_.lead_lost_text(event.text));
    case Membership::Event::What::lost: break;
  }
  if (membership_.over()) return;
  if (may_return(event.node)) return lose_for_now(event.node, event.text);
  lost_node_ = true;
  attempt_->set_node_state(event.node, io::RankState::dead);
  const std::string lost = membership_.name_of(event.node) + " was lost after step " + std::to_string(step_);
  // Logged now: the cause may also end this agent before the run's final error.
  log::warn("{}", lost);
  if (!membership_.leads() && membership_.coordinated() && !stop_ && !killed_)
    leaderless_ = lost + ": " + event.text;
  // This host may be the one that is cut off.
  if (!membership_.leads() && !membership_.coordinated() && event.seconds > 0 && may_join_again())
    surviving_.excluded = lost + ": " + event.text;
  fail({base::ErrorKind::comm, lost + ": " + event.text, 1});
}

/// The node's agent is alive but busy with a disk or another call.
void Run::on_busy(std::int64_t node, double seconds) {
  const std::string text = membership_.name_of(node) + " is alive, but its agent has been busy for " +
                           io::short_duration(seconds) + ": it may wait for a disk";
  if (sinks_started_ && membership_.leads() && !attempt_->failure()) notify(io::NoticeKind::warning, text);
  else log::info("{}", text);
}

void Run::report_nodes(const std::string& text) {
  if (sinks_started_) notify(io::NoticeKind::node, text);
  else log::info("{}", text);
}

void Run::on_message(std::int64_t node, const NodeReady& m) {
  base::check(membership_.leads(), "a node speaks of its ranks to the leader");
  if (m.attempt == attempt_->number()) attempt_->handle_node(node, m);
}

void Run::on_message(std::int64_t node, const NodeFinished& m) {
  if (m.attempt == attempt_->number()) attempt_->handle_node(node, m);
}

void Run::on_message(std::int64_t node, const NodeFailed& m) {
  // An agent that has just joined does not know that all ranks were ready before.
  const bool again = m.retry || (m.cause.what == kFailedStart && series_.was_ready);
  fail({m.kind, membership_.name_of(node) + ": " + m.message, m.weight, m.death, m.cause, again});
}

/// Any rank can vote to stop all ranks. The leader needs the reason.
void Run::on_message(std::int64_t node, const StopAsked& m) {
  request_stop({m.request.reason + " at " + membership_.name_of(node), m.request.exit_signal});
}

void Run::on_message(std::int64_t, ShardsSaved m) {
  if (stale(m.step, m.attempt)) return;
  if (auto job = parts_.add(m.step, m.first_rank, std::move(m.shards), m.snapshot_seconds, m.write_seconds))
    writer_.enqueue(*std::move(job));
}

void Run::on_message(std::int64_t, const Completed& m) { completed(m); }

void Run::on_message(std::int64_t, const SaveDropped& m) {
  if (!stale(m.step, m.attempt)) drop_save(m.step);
}

void Run::on_message(std::int64_t node, const SaveFailed& m) {
  if (membership_.leads()) {
    membership_.send(m);
    save_failed(m, membership_.name_of(node));
  } else {
    delay_saves();
  }
}

void Run::on_message(std::int64_t, const Regroup& m) {
  // The next attempt may already have failed on another node while this node prepares it.
  if (m.attempt == attempt_->number() || (next_ && m.attempt == next_->attempt)) regroup_asked_ = true;
}

void Run::on_message(std::int64_t node, const Held& m) {
  // A node that has taken a lost node's place holds no snapshot of the attempt.
  if (m.attempt == attempt_->number() && !away_.contains(node)) held_[node] = m;
}

void Run::on_message(std::int64_t, const SaveHeld& m) {
  const HeldStep* held = snapshots_->find(m.step);
  if (held == nullptr) return membership_.send(SaveDropped{m.step, attempt_->number()});
  parts_.retake(m.step);
  save_held(*held, 0);
}

void Run::on_message(std::int64_t, const CopySnapshot& m) {
  if (m.attempt != attempt_->number()) return;
  if (attempt_->all_finished_here()) return membership_.send(SnapshotCopied{m.step, m.attempt, false});
  keep_copies(m.kept_by_all, m.step);
  const HeldStep* held = snapshots_->find(m.step);
  const bool later = snapshots_->held().empty() || snapshots_->held().back().step < m.step;
  // A rank may be filling segments that are not taken.
  const bool whole = held != nullptr && taken(*held);
  if (whole && !partner_->sending()) return send_copy(*held);
  if (held == nullptr && later) wanted_copy_ = m.step;
  else membership_.send(SnapshotCopied{m.step, m.attempt, false});
}

void Run::on_message(std::int64_t, const FetchFailed& m) {
  if (m.attempt == attempt_->number()) without_memory_ = true;
}

void Run::on_message(std::int64_t node, const SnapshotCopied& m) { copied(node, m); }

void Run::on_message(std::int64_t, const Go& m) { next_ = m; }

void Run::on_message(std::int64_t, CopiesHashed m) {
  if (m.attempt == attempt_->number()) on_copies(std::move(m));
}

void Run::on_message(std::int64_t, ResultsDiffer m) {
  if (m.attempt == attempt_->number()) on_differing(std::move(m));
}

void Run::on_message(std::int64_t, FaultInjected m) {
  m.at_agent.reset();  // only the node that sent it acts on it
  on_injected(m);
}

}  // namespace trainerd::core::run
