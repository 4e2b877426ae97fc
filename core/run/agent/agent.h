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
  std::string executable;  ///< of this program: what workers are started from
  int signal_fd = -1;  ///< a signalfd for the signals that ask for a stop, which are blocked in every thread
  LeaveProcess leave;  ///< for a stop while the run is planned, when there is nothing to save
  std::shared_ptr<io::Screen> screen = {};      ///< what the user sees
  std::shared_ptr<io::RunLog> log = {};         ///< opened in the output directory
  std::string command = {};                     ///< the command line, for the record
  std::optional<MembershipOptions> membership;  ///< of a job over several nodes
  /// A cluster of machines like this one, whose operator rates predict the step's time.
  std::optional<parallel::Topology> rates = {};
  std::optional<double> deadline = {};  ///< monotonic seconds: the run has saved and stopped before
  /// The run asks for a stop when this step and its evaluation are done, unless it is the last.
  std::optional<std::int64_t> stop_after = {};
  bool fresh = false;              ///< an earlier run's output is moved aside
  std::string fresh_command = {};  ///< that begins the job anew, for people
  /// Where this node serves metrics, or "off"; empty: node 0 where the job says, the others not.
  std::string metrics_listen = {};
  Invocation invocation = {};
  io::FindS3 find_s3 = {};  ///< for data at s3://
};

struct AgentResult {
  std::int64_t step = 0;
  int stop_signal = 0;  ///< what the exit status of a run that was stopped is made of; 0: it is done
};

/// The node's agent: meets those of the job's other nodes, plans, refuses what does not fit, starts the
/// workers, keeps their checkpoints, relays a stop. Node 0's completes the checkpoints, keeps the records and
/// serves metrics. Returns when the job is done or stopped after saving; throws the typed error that ended it
/// otherwise. Nothing that is not whole is ever left as a checkpoint.
AgentResult run_agent(const AgentOptions& options);

}  // namespace trainerd::core::run
