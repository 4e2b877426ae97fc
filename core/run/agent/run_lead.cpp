#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "kernels/base/error.h"

// Part of the run (run.h): with a coordinator the loss of the leader ends the run of this agent, and not the
// job: run_agent begins another when one leads again.

namespace trainerd::core::run {

/// This agent must not lead any more. The others are not told: they find the next leader.
void Run::on_lost_lead(const std::string& why) {
  lost_node_ = true;
  leaderless_ = membership_.name_of(0) + " does not lead the run any more: " + why;
  if (metrics_file_) metrics_file_->disown();
  if (discovery_file_) discovery_file_->disown();
  membership_.abandon();
  fail({base::ErrorKind::comm, leaderless_, 2});
}

void Run::leave_to_next_leader() {
  attempt_->kill_workers();
  writer_.abandon();
  series_.folders = folders_;
  series_.lead_told = false;
  // The next leader may go back too: what it passes over is in the file.
  series_.passed_over.reset(), series_.returns_to.reset();
  // The report of a run that never began would be of nothing.
  if (told_ready_) finish("goes on with another leader");
}

}  // namespace trainerd::core::run
