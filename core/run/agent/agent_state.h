#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/run/agent/agent.h"
#include "core/run/agent/checkpoint_parts.h"
#include "core/run/agent/checkpoint_writer.h"
#include "core/run/agent/device_watch.h"
#include "core/run/agent/metrics_file.h"
#include "core/run/agent/output_directory.h"
#include "core/run/agent/planned_ranks.h"
#include "core/run/agent/run_sinks.h"
#include "core/run/agent/trace_files.h"
#include "core/run/nodes/membership.h"
#include "core/run/stop/time_limit.h"
#include "core/run/wire/channel.h"
#include "core/run/wire/messages.h"
#include "core/run/worker/plan_check.h"
#include "core/run/worker/rank_world.h"
#include "core/run/worker/resume_check.h"
#include "core/run/worker/worker_process.h"
#include "io/metrics/sinks.h"
#include "kernels/base/clock.h"
#include "kernels/base/segment.h"
#include "parallel/comm/rendezvous/tcp_store.h"

// The agent's state, for its files: agent.cpp starts, watches and ends a run; agent_messages.cpp is what it
// makes of what ranks and other nodes say; agent_checkpoints.cpp brings their snapshots to the disk;
// agent_stop.cpp is how a run is stopped; agent_records.cpp is what it says itself, to the log, the sinks and
// the output directory.

namespace trainerd::core {

/// One rank of this node as the agent sees it.
struct Worker {
  std::int64_t rank = 0;
  std::vector<std::shared_ptr<base::Segment>> segments;
  std::optional<Channel> channel;
  std::optional<WorkerProcess> process;
  bool channel_open = true, alive = true;
  std::deque<SnapshotReady> snapshots;  ///< of steps that other ranks have not saved yet
};

/// What ended a run: the first error, unless a later one tells more of the cause.
struct Failure {
  base::ErrorKind kind = base::ErrorKind::comm;
  std::string message;
  int weight = 0;
};

class Agent {
 public:
  Agent(const AgentOptions& options, Membership& membership);
  /// Opens the log, finds the checkpoint to go on from, and looks at the data.
  void prepare();
  AgentResult run();

 private:
  void announce();
  std::string layout_text() const;
  std::string hosts_text() const;
  void plan();
  void resume();
  void check_data();
  void refuse_records() const;
  void begin();
  bool already_trained() const;
  AgentResult already_done();
  std::unique_ptr<io::ReportSink> report_sink() const;
  void open_sinks();
  bool evaluation_missing() const;
  void serve_metrics(const io::MetricsOptions& metrics);
  void start_workers();
  void start_worker(std::int64_t rank);
  void supervise();
  // How it stops (agent_stop.cpp).
  void on_signal();
  void request_stop(const StopRequest& request);
  void stop_at_once(const StopRequest& request, const std::string& message);
  bool stopped_before_start();
  void begin_time_limit();
  std::optional<double> time_left() const;
  void check_time_limit();
  void on_message(Worker& worker);
  void on_saved();
  void on_devices();
  void on_worker_end(Worker& worker);
  void on_node_event(const Membership::Event& event);
  // Of any rank.
  void handle(std::int64_t rank, const Ready& m);
  void handle(std::int64_t, const Failed& m);
  void handle(std::int64_t rank, const Finished& m);
  // Of a rank of this node.
  void handle(std::int64_t, const io::StepRecord& m);
  void handle(std::int64_t, const io::EvaluationRecord& m);
  void handle(std::int64_t, const io::EvaluationProgress& m) {
    if (all_ready()) sinks_.each(&io::MetricsSink::on_evaluation_progress, m);
  }
  void handle(std::int64_t, const io::NoticeRecord& m);
  void handle(std::int64_t rank, const StopNeeded& m) {
    request_stop({m.reason + " at rank " + std::to_string(rank)});
  }
  void handle(std::int64_t rank, const StepTrace& m);
  void handle(std::int64_t rank, const SnapshotReady& m);
  void handle(std::int64_t rank, const MemoryUsed& m);
  void compare_with_plan();
  // Of another node.
  void on_message(std::int64_t, const RankMessage& m);
  void on_message(std::int64_t, const ShardsSaved& m);
  void on_message(std::int64_t node, const NodeFailed& m) {
    fail({m.kind, membership_.name_of(node) + ": " + m.message, m.weight});
  }
  void on_message(std::int64_t node, const StopAsked& m);
  void on_message(std::int64_t, const Completed& m) { completed(m.step, m.path); }
  void on_message(std::int64_t, const SaveDropped& m) { drop_save(m.step); }
  void on_message(std::int64_t node, const SaveFailed& m);
  void on_message(std::int64_t, const Go&) {}
  void on_message(std::int64_t, const End&) {}  // what it says is the membership's to keep
  void on_all_ready();
  void watch_devices();
  void save_complete_steps();
  void on_written(CheckpointWriter::Result result);
  void on_shards(CheckpointWriter::Result result);
  void save_failed(const SaveFailed& m, const std::string& node);
  void drop_save(std::int64_t step);
  void delay_saves();
  void release(std::int64_t step);
  void completed(std::int64_t step, const std::string& path);
  void fail(Failure failure);
  std::string with_last_checkpoint(const Failure& failure) const;
  void send(Worker& worker, const AgentMessage& message);
  void kill_workers();
  bool working() const;
  bool workers_left() const;
  bool all_ready() const {
    return std::cmp_equal(ready_.size(), membership_.leads() ? layout_.grid.ranks() : here_.count);
  }
  void drain_writer();
  void drain_quietly();
  void end_failed(const std::string& error);
  void finish(const std::string& outcome);
  io::RunInfo run_info() const;
  void warn_early(const std::string& message);
  void notify(io::NoticeKind kind, const std::string& message, std::vector<std::string> details = {});
  void record(io::NoticeKind kind, const std::string& message, std::vector<std::string> details = {});
  void record_begin();
  void record_failure(const std::string& error);
  void record_refused(const std::string& error);
  void watch_outlets();

  const AgentOptions& options_;
  const JobSpec& job_;
  Membership& membership_;
  double begin_ = base::monotonic_seconds();
  OutputDirectory output_;
  parallel::Topology topology_;
  parallel::Layout layout_;
  NodeRanks here_;
  PlannedRanks plans_;
  std::optional<Planned> planned_;       ///< by the leader
  std::optional<PlanCheck> plan_check_;  ///< the leader's, while it trains
  io::CheckpointStore store_;
  /// Where the ranks of a node alone meet, if NCCL joins them.
  std::unique_ptr<parallel::StoreServer> store_server_;
  std::optional<base::Segment> world_;  ///< the memory that the node's ranks share; none for a rank alone
  CheckpointWriter writer_;
  CheckpointParts parts_;  ///< of the leader of several nodes
  std::optional<MetricsFile> metrics_file_;
  struct Saving {
    int segment = 0;
    bool in_use = true;    ///< by this node's writer
    bool dropped = false;  ///< by the job
  };
  std::map<std::int64_t, Saving> saving_;  ///< by step: checkpoints that are not complete
  bool saves_fail_ = false;                ///< since the last that is
  RunSinks sinks_;
  std::vector<std::string> early_warnings_;  ///< logged before the sinks were open
  TraceFiles traces_;
  std::optional<DeviceWatch> devices_;      ///< of this node's GPUs
  std::vector<std::int64_t> device_ranks_;  ///< whose they are
  Start start_;
  std::optional<io::EarlierAttempt> earlier_;  ///< the leader's
  bool begun_ = false;                         ///< is in the records
  std::optional<io::TrainingState> resumed_;
  DataSeen data_;
  std::vector<io::NoticeRecord> changes_;  ///< since the checkpoint; for the sinks when all ranks are ready
  std::deque<Worker> workers_;             ///< of this node's ranks; they stay where they are
  std::map<std::int64_t, Ready> ready_;    ///< by rank: of this node, or all that the leader has heard of
  std::map<std::int64_t, Finished> finished_;  ///< by rank
  /// Heard before the last rank's `Ready`.
  std::vector<std::variant<io::StepRecord, io::EvaluationRecord>> early_;
  std::optional<Failure> failure_;
  double failed_at_ = 0;
  std::int64_t step_ = 0;
  std::string last_good_ = "none";   ///< the checkpoint that was verified or written by this run last
  StopSignals signals_;              ///< to this agent
  std::optional<StopRequest> stop_;  ///< of this agent, or of another
  std::optional<TimeLimit> time_limit_;
  bool slow_gemms_told_ = false;
  bool killed_ = false;  ///< stopped at once: nothing is waited for
};

}  // namespace trainerd::core
