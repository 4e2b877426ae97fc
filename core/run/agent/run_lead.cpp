#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "kernels/base/error.h"

// Part of the run (run.h): loss of the leader with a coordinator. It ends this agent's Run but not the job:
// run_agent starts another Run when there is a new leader. Any failure of an agent that has lost the lead is
// taken as a consequence and not sent to the others.

namespace trainerd::core::run {

/// Called before changes that only the leader may make. Throws LeadLost if another agent may lead.
void Run::require_lead() const {
  membership_.require_lead();
  const auto lead = LeadMark::parse(membership_.go().run);
  if (membership_.leads() && lead) output_.require_mark(*lead);
}

/// This agent must not lead any more. It sends the other nodes nothing: they find the next leader.
void Run::on_lost_lead(const std::string& text) {
  lost_node_ = true;
  leaderless_ = text;
  if (metrics_file_) metrics_file_->disown();
  if (discovery_file_) discovery_file_->disown();
  membership_.abandon();
  fail({base::ErrorKind::comm, leaderless_, 2});
}

/// An agent that no longer leads can fail in any way. Replaces the error by the loss of the lead.
void Run::leave_without_lead(const std::exception& error) {
  const bool reported = !leaderless_.empty();
  if (!reported) {
    const auto* lost = dynamic_cast<const LeadLost*>(&error);
    if (lost == nullptr) log::error("{}", error.what());
    on_lost_lead(lost != nullptr ? lost->what() : membership_.lead_lost_text());
  }
  end_failed(leaderless_);
  if (reported) throw;
  throw LeadLost(leaderless_);
}

// Does not remove files that belong to another agent by now.
Run::~Run() {
  if (!membership_.lead_is_lost()) return;
  if (metrics_file_) metrics_file_->disown();
  if (discovery_file_) discovery_file_->disown();
}

void Run::leave_to_next_leader() {
  attempt_->kill_workers();
  writer_.abandon();
  series_.folders = folders_;
  series_.faults_done = start_.faults_done;
  series_.lead_recorded = false;
  // The next leader may roll back too; the file has the samples to skip.
  series_.passed_over.reset(), series_.returns_to.reset();
  // A run that never began gets no report.
  if (sinks_started_) finish("goes on with another leader");
}

/// Connects to the partner for this attempt, through the leader's store.
void Run::meet_partner(std::int64_t attempt) {
  try {
    partner_->begin(attempt);
  } catch (const base::CommError& error) {
    if (membership_.leads() || !membership_.coordinated()) throw;
    membership_.lose_leader(membership_.name_of(0) + " was lost: " + error.what());
  }
}

}  // namespace trainerd::core::run
