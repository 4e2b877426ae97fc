#include "io/metrics/report/load.h"

#include <algorithm>
#include <vector>

#include "io/runs/run_directory.h"
#include "io/text/text.h"
#include "kernels/base/clock.h"

namespace trainerd::io {
namespace {

std::string outcome_of(const RunStatus& status) {
  switch (status.state) {
    case RunState::starting:
    case RunState::training:
    case RunState::evaluating: return kRunning;
    case RunState::done: return "done";
    case RunState::stopped: return status.outcome.starts_with("stopped") ? status.outcome : "stopped";
    case RunState::lost: return "lost: " + status.outcome;
    case RunState::failed: break;
  }
  return status.outcome.empty() ? "failed" : status.outcome;
}

}  // namespace

Report load_report(const std::string& path) {
  RunDirectory directory(path);
  std::vector<double> speeds, mfus;
  directory.update([&](const StepRecord& record) {
    speeds.push_back(record.tokens_per_second);
    if (record.mfu) mfus.push_back(*record.mfu);
  });
  Report r;
  r.now = base::wall_seconds();
  const RunStatus status = directory.status(r.now);
  const RunHistory& history = directory.history();
  r.info = status.info;
  r.total_seconds = status.seconds;
  r.tokens = status.tokens;
  r.notices.assign(history.notices().begin(), history.notices().end());
  r.attempts = history.attempts();
  r.summary = {.step = status.step, .wall_seconds = status.seconds, .outcome = outcome_of(status)};
  r.series = history.series();
  r.evaluations = history.evaluations();
  r.checkpoints.assign(history.checkpoints().begin(), history.checkpoints().end());
  r.prediction = history.prediction();
  if (status.last) r.final_loss = status.last->loss;
  r.median_tokens_per_second = median(speeds);
  r.median_mfu = median(mfus);
  r.job_yaml = directory.job_yaml();
  return r;
}

}  // namespace trainerd::io
