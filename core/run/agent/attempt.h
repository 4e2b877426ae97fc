#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/run/agent/device_watch.h"
#include "core/run/agent/node_snapshots.h"
#include "core/run/agent/planned_world.h"
#include "core/run/agent/rank_watch.h"
#include "core/run/agent/ready_ranks.h"
#include "core/run/agent/trace_files.h"
#include "core/run/supervise/repeated_failure.h"
#include "core/run/wire/channel.h"
#include "core/run/wire/messages.h"
#include "core/run/worker/worker_process.h"
#include "io/records/ranks.h"
#include "kernels/base/segment.h"
#include "parallel/comm/rendezvous/tcp_store.h"

namespace trainerd::core::run {

class Run;

/// What ended an attempt: the first error, unless a later one is closer to the cause.
struct Failure {
  base::ErrorKind kind = base::ErrorKind::comm;
  std::string message;
  int weight = 0;           ///< how close it is to the cause
  bool death = false;       ///< a worker ended by a signal: the workers may start again
  FailureCause cause = {};  ///< of such an end: what may come again at the same place
  bool retry = false;       ///< a rank ended by a failed communication or device: likewise

  bool restarts() const { return death || retry; }
};

/// One world of a run: its layout, this node's workers, the memory that they share, and what they say until
/// the world ends. Records of the training go to the run (run.h), which outlives it.
class Attempt {
 public:
  /// Number `number` of `run`, from 1. Nothing is started yet.
  Attempt(Run& run, PlannedWorld plan, std::int64_t number);

  /// Starts the workers where `start` says; with `held`, from that snapshot.
  void begin(Start start, const HeldStep* held);
  /// Appends the descriptors to poll.
  void watch(std::vector<pollfd>& fds) const;
  /// Handles what came, by the descriptors that `watch` appended.
  void take(std::span<const pollfd> fds);
  void send_all(const AgentMessage& message);
  /// What became of a snapshot, by rank of the node the segment.
  void send_saved(const std::vector<std::int64_t>& segments);
  void send_delayed(const std::vector<std::int64_t>& segments);
  /// Keeps the failure, ends the ranks' waits for each other, and lets them report: the rank with the cause
  /// may report after the ranks that missed it.
  void fail(Failure failure);
  void kill_workers();
  /// Ends the workers, waits for their ends, and reads their last messages.
  void end_workers();

  // Messages of another node to the leader.
  void handle_node(std::int64_t node, const NodeReady& m);
  void handle_node(std::int64_t node, const NodeFinished& m);

  /// Records the state of all ranks of another node.
  void set_node_state(std::int64_t node, io::RankState state);

  const PlannedWorld& plan() const { return plan_; }
  std::int64_t number() const { return number_; }
  bool begun() const { return begun_; }
  const std::optional<Failure>& failure() const { return failure_; }
  double failed_at() const { return failed_at_; }
  /// What each rank of this node communicated last, when the attempt failed; empty: it was not by
  /// communication.
  const std::vector<std::string>& flights() const { return flights_text_; }
  /// Whether everybody is ready that this agent waits for.
  bool all_ready() const { return ready_.all(); }
  /// What this node's ranks do; null: not looked at.
  const RankWatch* ranks() const { return rank_watch_ ? &*rank_watch_ : nullptr; }
  bool workers_left() const;
  /// Whether workers that have had nothing left to do for so long are not going to end: they are stopped, or
  /// have had far more time than it takes.
  bool workers_stay(double seconds) const;
  bool all_finished_here() const;
  /// Whether every rank of the world has finished, as far as the leader knows.
  bool all_finished() const;
  /// Whether it ended by a vote, before the last step.
  bool stopped() const;

 private:
  /// One rank of this node as the agent sees it.
  struct Worker {
    std::int64_t rank = 0;
    std::optional<Channel> channel;
    std::optional<WorkerProcess> process;
    bool channel_open = true, alive = true;
    std::deque<SnapshotReady> snapshots;  ///< of steps that other ranks have not saved yet
  };

  void announce_ranks();
  void set_rank_states(io::RankState state);
  void set_rank_state(std::int64_t node, std::int64_t first, std::int64_t count, io::RankState state);
  void report_memory(std::int64_t rank, std::optional<std::int64_t> used_bytes);
  void start_worker(const Start& start, std::int64_t rank, const HeldStep* held);
  void send(Worker& worker, const AgentMessage& message);
  void on_message(Worker& worker);
  void on_worker_end(Worker& worker);
  void on_devices();
  void look_at_ranks();
  void begin_if_all_ready();
  void watch_devices();
  void save_complete_steps();
  // A rank of this node sent a message.
  void handle(std::int64_t rank, Ready m);
  void handle(std::int64_t rank, const Finished& m);
  void handle(std::int64_t rank, const Failed& m);
  void handle(std::int64_t, const io::StepRecord& m);
  void handle(std::int64_t, const io::EvaluationRecord& m);
  void handle(std::int64_t, const io::EvaluationProgress& m);
  void handle(std::int64_t, const ReferenceProgress& m);
  void handle(std::int64_t, const io::NoticeRecord& m);
  void handle(std::int64_t, const io::RankStatusRecord& m);
  void handle(std::int64_t rank, const StopNeeded& m);
  void handle(std::int64_t rank, const StepTrace& m);
  void handle(std::int64_t rank, const SnapshotReady& m);
  void handle(std::int64_t rank, const MemoryUsed& m);
  void handle(std::int64_t rank, const FaultInjected& m);
  void handle(std::int64_t rank, CopiesHashed m);
  void handle(std::int64_t rank, ResultsDiffer m);
  void handle(std::int64_t rank, const SpikeActed& m);

  Run& run_;
  PlannedWorld plan_;
  std::int64_t number_;
  bool begun_ = false;
  /// Where the ranks of a node alone meet, if NCCL joins them.
  std::unique_ptr<parallel::StoreServer> store_server_;
  std::optional<base::Segment> world_;    ///< the memory that the node's ranks share; none for a rank alone
  std::optional<base::Segment> flights_;  ///< what they do, and communicated last
  std::optional<RankWatch> rank_watch_;
  std::vector<std::string> flights_text_;
  TraceFiles traces_;
  std::optional<DeviceWatch> devices_;      ///< of this node's GPUs
  std::vector<std::int64_t> device_ranks_;  ///< whose they are
  std::vector<std::string> device_ids_;     ///< PCI bus ids
  std::deque<Worker> workers_;              ///< of this node's ranks; they stay where they are
  ReadyRanks ready_;
  std::map<std::int64_t, Finished> finished_;  ///< by rank of this node
  std::set<std::int64_t> finished_nodes_;      ///< the others, on the leader
  /// Received before the last rank's `Ready`.
  std::vector<std::variant<io::StepRecord, io::EvaluationRecord>> early_;
  std::optional<Failure> failure_;
  double failed_at_ = 0;
};

}  // namespace trainerd::core::run
