#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/run/agent/start_record.h"
#include "core/run/nodes/membership.h"
#include "core/run/stop/stop.h"
#include "io/console/run_log.h"
#include "io/console/screen.h"
#include "io/metrics/sink.h"
#include "io/s3/settings.h"

namespace trainerd::core::run {

struct AgentOptions {
  job::JobSpec job;
  std::string executable;  ///< path of this program, from which workers are started
  int signal_fd = -1;      ///< signalfd of the signals that request a stop; they are blocked in every thread
  LeaveProcess leave;      ///< called for a stop during planning, when there is nothing to save
  std::shared_ptr<io::Screen> screen = {};      ///< the user's terminal
  std::shared_ptr<io::RunLog> log = {};         ///< the run opens it in the output directory
  std::string command = {};                     ///< the command line, for the records
  std::optional<MembershipOptions> membership;  ///< set for a job over several nodes
  /// Topology of machines like this one with measured operator rates, which predict the step's time.
  std::optional<parallel::Topology> rates = {};
  std::optional<double> deadline = {};  ///< monotonic seconds; the run saves and stops before it
  /// If set, the run requests a stop after this step and its evaluation, unless it is the last step.
  std::optional<std::int64_t> stop_after = {};
  bool fresh = false;              ///< rename an earlier run's output first
  std::string fresh_command = {};  ///< command that starts the job from step 1, for error messages
  /// Address at which this node serves metrics, or "off". Empty: node 0 uses the job's, other nodes serve
  /// none.
  std::string metrics_listen = {};
  Invocation invocation = {};
  io::FindS3 find_s3 = {};  ///< finds credentials and endpoint for s3:// URIs
};

struct AgentResult {
  std::int64_t step = 0;
  int stop_signal = 0;  ///< signal for the exit status of a stopped run; 0: all steps are done
};

/// Runs this node's agent. It joins the other nodes' agents, plans, rejects a job that does not fit, starts
/// the workers, writes their checkpoints and forwards a stop. Node 0's agent also completes checkpoints,
/// keeps the records and serves metrics. Returns when the job is done or has stopped after a save, and else
/// throws the typed error that ended it. An unfinished save never counts as a checkpoint.
AgentResult run_agent(const AgentOptions& options);

}  // namespace trainerd::core::run
