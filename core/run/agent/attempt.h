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
#include "core/run/agent/run_parts.h"
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

/// The failure that ended an attempt: the first one, unless a later one has a higher weight.
struct Failure {
  base::ErrorKind kind = base::ErrorKind::comm;
  std::string message;
  int weight = 0;           ///< larger: closer to the cause
  bool death = false;       ///< a worker was ended by a signal; the workers may start again
  FailureCause cause = {};  ///< for counts of repeated failures at the same place
  bool retry = false;       ///< a rank reported a failed communication or device; the workers may start again

  bool restarts() const { return death || retry; }
};

/// One set of worker processes from start to end: its layout, this node's workers, their shared memory and
/// their messages. Training records go to the run (run.h), which outlives it.
class Attempt {
 public:
  /// `number` counts the attempts of `run` from 1. Starts no worker yet.
  Attempt(Run& run, PlannedWorld plan, std::int64_t number);

  /// Starts the workers where `start` says; with `held`, from that snapshot. With `gathered` they begin from
  /// these shards, and `held` is their own part of that state, if they have it.
  void begin(Start start, const HeldStep* held, const std::optional<Gathered>& gathered = {});
  /// Appends the descriptors to poll.
  void watch(std::vector<pollfd>& fds) const;
  /// Handles the events of the descriptors that `watch` appended, in the same order.
  void take(std::span<const pollfd> fds);
  void send_all(const AgentMessage& message);
  /// Sends each worker the result for its snapshot; `segments` is indexed by the rank's place in the node.
  void send_saved(const std::vector<std::int64_t>& segments);
  void send_delayed(const std::vector<std::int64_t>& segments);
  /// Records the failure and aborts the ranks' waits for each other. The ranks can still report: the rank
  /// with the cause may report later than the ranks that waited for it.
  void fail(Failure failure);
  void kill_workers();
  /// Kills the workers, waits until they have ended, and reads their last messages.
  void end_workers();

  // Messages from another node; only the leader receives them.
  void handle_node(std::int64_t node, const NodeReady& m);
  void handle_node(std::int64_t node, const NodeFinished& m);

  /// Records the state of all ranks of another node.
  void set_node_state(std::int64_t node, io::RankState state);

  const PlannedWorld& plan() const { return plan_; }
  std::int64_t number() const { return number_; }
  bool begun() const { return begun_; }
  const std::optional<Failure>& failure() const { return failure_; }
  double failed_at() const { return failed_at_; }
  /// The last communication of each rank of this node at the time of the failure. Empty if the failure was
  /// not a communication error.
  const std::vector<std::string>& flights() const { return flights_text_; }
  /// True if every rank that this agent waits for is ready (ReadyRanks::all).
  bool all_ready() const { return ready_.all(); }
  /// The watch on this node's ranks; null with supervise.hang_factor 0.
  const RankWatch* ranks() const { return rank_watch_ ? &*rank_watch_ : nullptr; }
  bool workers_left() const;
  /// True if no living worker is expected to end, `seconds` after all work was done: all are stopped by a
  /// signal, or the time is far longer than a normal exit takes.
  bool workers_stay(double seconds) const;
  bool all_finished_here() const;
  /// True if every rank of the world has finished. Valid on the leader only.
  bool all_finished() const;
  /// True if the ranks voted to stop before the last step.
  bool stopped() const;

 private:
  /// The agent's state for one rank of this node.
  struct Worker {
    std::int64_t rank = 0;
    std::optional<Channel> channel;
    std::optional<WorkerProcess> process;
    bool channel_open = false, alive = false;
    std::deque<SnapshotReady> snapshots;  ///< of steps that other ranks of the node have not saved yet
  };

  void announce_ranks();
  void set_rank_states(io::RankState state);
  void set_rank_state(std::int64_t node, std::int64_t first, std::int64_t count, io::RankState state);
  void report_memory(std::int64_t rank, std::optional<std::int64_t> used_bytes);
  void start_worker(const Start& start, std::int64_t rank, const HeldStep* held,
                    const std::optional<Gathered>& gathered);
  void send(Worker& worker, const AgentMessage& message);
  void on_message(Worker& worker);
  void on_worker_end(Worker& worker);
  void on_devices();
  void look_at_ranks();
  void begin_if_all_ready();
  void watch_devices();
  void save_complete_steps();
  // Messages from a rank of this node.
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
  /// Rendezvous for NCCL on a single node; null otherwise.
  std::unique_ptr<parallel::StoreServer> store_server_;
  std::optional<base::Segment> world_;    ///< shared memory of the node's ranks; none if there is only one
  std::optional<base::Segment> flights_;  ///< the ranks' activity pages and communication rings
  std::optional<RankWatch> rank_watch_;
  std::vector<std::string> flights_text_;
  TraceFiles traces_;
  std::optional<DeviceWatch> devices_;      ///< of this node's GPUs
  std::vector<std::int64_t> device_ranks_;  ///< whose they are
  std::vector<std::string> device_ids_;     ///< PCI bus ids
  std::deque<Worker> workers_;              ///< of this node's ranks; they stay where they are
  ReadyRanks ready_;
  std::map<std::int64_t, Finished> finished_;  ///< by rank of this node
  std::set<std::int64_t> finished_nodes_;      ///< other nodes that have finished; leader only
  /// Records that arrived before the last rank's `Ready`.
  std::vector<std::variant<io::StepRecord, io::EvaluationRecord>> early_;
  std::optional<Failure> failure_;
  double failed_at_ = 0;
  std::int64_t memory_kills_ = 0;  ///< base::out_of_memory_kills when the workers started
};

}  // namespace trainerd::core::run
