#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/hf/companions.h"
#include "core/run/agent/agent.h"
#include "core/run/agent/attempt.h"
#include "core/run/agent/cadence.h"
#include "core/run/agent/checkpoint_parts.h"
#include "core/run/agent/checkpoint_writer.h"
#include "core/run/agent/device_supervisor.h"
#include "core/run/agent/difference_watch.h"
#include "core/run/agent/discovery_file.h"
#include "core/run/agent/durable_copier.h"
#include "core/run/agent/durable_tier.h"
#include "core/run/agent/elastic.h"
#include "core/run/agent/fault_log.h"
#include "core/run/agent/loss_watch.h"
#include "core/run/agent/metrics_file.h"
#include "core/run/agent/node_snapshots.h"
#include "core/run/agent/output_directory.h"
#include "core/run/agent/preflight_watch.h"
#include "core/run/agent/rank_supervisor.h"
#include "core/run/agent/restart_budget.h"
#include "core/run/agent/run_parts.h"
#include "core/run/agent/run_sinks.h"
#include "core/run/nodes/membership.h"
#include "core/run/nodes/partner.h"
#include "core/run/stop/time_limit.h"
#include "core/run/wire/messages.h"
#include "core/run/worker/plan_check.h"
#include "core/run/worker/resume_check.h"
#include "io/metrics/sinks.h"
#include "io/storage/failing_storage.h"
#include "kernels/base/clock.h"

// One run of a job. It is implemented in run.cpp, which starts, supervises and ends it, and in run_*.cpp,
// whose head comments name their parts.

namespace trainerd::core::run {

/// Opens the remote storages that the agent's job names.
io::OpenRemote remote_storages(const AgentOptions& options);
/// The store of the job's durable tier. Reads nothing from it.
io::CheckpointStore durable_store(const AgentOptions& options);
/// The text that identifies this job in the tier's file OWNER (io/checkpoint/tiers.h).
std::string durable_owner(const AgentOptions& options);

class Run {
 public:
  Run(const AgentOptions& options, Membership& membership, RunSeries& series);
  ~Run();
  /// Opens the log, finds the checkpoint to start from, and checks the data.
  void prepare();
  AgentResult run();
  bool resizes() const { return resizes_; }  ///< it ended to continue with another number of nodes

  // ---- used by its attempts

  const AgentOptions& options() const { return options_; }
  const job::JobSpec& job() const { return job_; }
  const OutputDirectory& output() const { return output_; }
  const parallel::Topology& topology() const { return topology_; }
  Membership& membership() { return membership_; }
  NodeSnapshots& snapshots() { return *snapshots_; }
  RunSinks& sinks() { return sinks_; }
  RankSupervisor& ranks() { return ranks_; }
  DeviceSupervisor& devices() { return devices_; }
  const PlannedWorld& world() const { return attempt_->plan(); }
  std::int64_t step() const { return step_; }
  bool was_ready() const { return series_.was_ready; }  ///< all ranks were ready in some attempt
  bool stopping() const { return stop_.has_value(); }
  const std::map<std::string, std::string>& evaluated_data() const { return data_.evaluated; }
  void request_stop(const StopRequest& request);
  void drain();
  void end_by_device(const std::string& why);
  void notify(io::NoticeKind kind, const std::string& message, std::vector<std::string> details = {});
  PreflightWatch& preflight() { return preflight_; }
  /// All ranks are there. Throws DataError when they do not see the same data.
  void on_all_ready(const ReadyRanks& ready);
  void on_step(io::StepRecord record);
  void on_evaluation(io::EvaluationRecord record);
  void on_rank_status(const io::RankStatusRecord& record);
  /// A rank of any node has hashed its replicated state.
  void on_copies(CopiesHashed m);
  /// A rank of any node computed a step again with a different result, or its state changed between updates.
  void on_differing(ResultsDiffer m);
  /// The ranks' action on a loss or gradient spike.
  void on_spike(const SpikeActed& m);
  /// A rank of this node makes a fault of the job's `faults`.
  void on_injected(const FaultInjected& m);
  void on_memory_used(std::int64_t rank, std::int64_t bytes);
  /// Called when every rank of this node has filled its segment. `seconds`: the checkpoint stall.
  void on_snapshot(HeldStep held, SnapshotUse use, double seconds,
                   const std::map<std::string, std::string>& environment);
  /// The segments that the rank with index `place` in the node must not fill.
  std::vector<std::int64_t> busy_segments(std::size_t place) const;
  /// This node's ranks make no more snapshots.
  void on_finished(bool stopped);

 private:
  // How it begins (run_resume.cpp).
  void plan();
  void resume();
  void learn_from(const std::string& head);
  void check_data();
  void check_weights();
  void require_reference(const std::string& path) const;
  void settle_tokenizer();
  void require_same_base(const std::string& path, const std::string& content) const;
  std::string begin_message() const;
  void refuse_records();
  bool evaluation_missing() const;
  bool already_trained() const;
  AgentResult already_done();
  std::optional<io::CheckpointStore::Found> find_newest();
  void begin();
  // Attempts and the end of the run (run.cpp).
  void train();
  void supervise();
  void wait_for_events(std::optional<double> seconds);
  bool working();
  void require_lead() const;  // run_lead.cpp
  void on_lost_lead(const std::string& text);
  [[noreturn]] void leave_without_lead(const std::exception& error);
  void leave_to_next_leader();
  void meet_partner(std::int64_t attempt);
  bool ended_by_leader() const { return !membership_.leads() && membership_.over(); }
  void throw_received_failure();
  [[noreturn]] void throw_failure();
  std::string with_last_checkpoint(const Failure& failure) const;
  void fail(Failure failure) { attempt_->fail(std::move(failure)); }
  void drain_writer();
  void drain_quietly();
  void end_failed(const std::string& error);
  // The next attempt (run_restart.cpp).
  enum class Next { attempt, stop, failure, resize };
  Next after_failure();
  Next lead_restart();
  Next follow_restart();
  bool gather_held();
  Next begin_anew_from_disk();
  Next stop_in_place(std::int64_t step);
  // Spikes and rollbacks (run_spikes.cpp).
  Next roll_back();
  bool finish_saves_before_rollback();
  std::optional<std::int64_t> nodes_that_go_on();
  std::int64_t rollback_target(std::int64_t step) const;
  void withdraw_after(std::int64_t step);
  void add_judged(const io::StepRecord& record);
  SpikeHistory spike_history(std::int64_t step) const;
  void save_newest(std::int64_t step);
  bool finish_saves(double seconds);
  std::string find_checkpoint(Go& go);
  bool prepare_restart(const Go& go);
  void record_restart(const Go& go);
  // Recovery times (run_recovery.cpp).
  void begin_recovery();
  void recovery_is_ready(const ReadyRanks& ready);
  void end_recovery(const io::StepRecord& first);
  // Stops (run_stop.cpp).
  void on_signal();
  void stop_at_once(const StopRequest& request, const std::string& message);
  bool stopped_before_start();
  void begin_time_limit();
  double guessed_save_seconds() const;
  std::optional<double> time_left() const;
  void check_time_limit();
  void stop_after(std::int64_t step);
  // Fewer nodes, or more again (run_elastic.cpp).
  void check_smallest() const;
  std::optional<JobSize> size_of_the_rest() const;
  bool shrinks() const;
  Next shrink();
  void grow_if_possible();
  AgentResult leave_to_next_size();
  // Other nodes (run_nodes.cpp).
  void on_node_event(Membership::Event event);
  void on_busy(std::int64_t node, double seconds);
  void report_nodes(const std::string& text);
  void on_message(std::int64_t, const TakePlace&) {}    // these two are for an agent
  void on_message(std::int64_t, const WaitAsSpare&) {}  // that has no run yet
  void on_message(std::int64_t, const Resize& m) { resizes_ = true, series_.from_disk = m.from_disk; }
  void on_message(std::int64_t node, const NodeReady& m);
  void on_message(std::int64_t node, const NodeFinished& m);
  void on_message(std::int64_t node, ShardsSaved m);
  void on_message(std::int64_t node, const NodeFailed& m);
  void on_message(std::int64_t node, const StopAsked& m);
  void on_message(std::int64_t node, const Completed& m);
  void on_message(std::int64_t node, const SaveDropped& m);
  void on_message(std::int64_t node, const SaveFailed& m);
  void on_message(std::int64_t node, const DurableBegin& m);
  void on_message(std::int64_t node, const DurableDrop& m);
  void on_message(std::int64_t node, const DurableShards& m);
  void on_message(std::int64_t node, const DurableFailed& m);
  void on_message(std::int64_t node, const Regroup& m);
  void on_message(std::int64_t node, const Held& m);
  void on_message(std::int64_t node, const SaveHeld& m);
  void on_message(std::int64_t node, const CopySnapshot& m);
  void on_message(std::int64_t node, const SnapshotCopied& m);
  void on_message(std::int64_t node, const FetchFailed& m);
  void on_message(std::int64_t node, const Go& m);
  void on_message(std::int64_t, const ShowState& m);
  void on_message(std::int64_t node, StateShown m);
  void on_message(std::int64_t, const RankMessage auto& m) {
    if (m.attempt == attempt_->number()) ranks_.on_message(*attempt_, m);
  }
  void on_message(std::int64_t, const DeviceFound& m) { devices_.on_found(m); }
  void on_message(std::int64_t, FaultInjected m);
  void on_message(std::int64_t, CopiesHashed m);
  void on_message(std::int64_t, ResultsDiffer m);
  void on_message(std::int64_t, const End&) {}  // handled by the membership
  // Checkpoints (run_checkpoints.cpp).
  void save_held(const HeldStep& held, double seconds);
  void on_saved();
  void on_written(CheckpointWriter::Result result);
  void on_shards(CheckpointWriter::Result result);
  void on_tagged(const CheckpointWriter::Result& result);
  void judge_checkpoint(std::int64_t step, double loss);
  void unpin_candidate();
  void save_failed(const SaveFailed& m, const std::string& node);
  void drop_save(std::int64_t step);
  void delay_saves();
  void release(std::int64_t step);
  void completed(const Completed& m);
  Saving* saving_in(std::int64_t step, std::int64_t folder);
  void drop_saves_after(std::int64_t step);
  void cancel_dropped();
  /// Whether that is of a snapshot that was dropped when the workers started again.
  bool stale(std::int64_t step, std::int64_t attempt) const;
  std::int64_t folder_attempt(std::int64_t step) const;
  // Copies in the durable tier (run_durable.cpp).
  void begin_durable();
  void copy_durably(std::int64_t step, const std::string& folder);
  void durable_next();
  void copy_shards_durably(const DurableBegin& m);
  std::string durable_target(std::int64_t step, const std::string& folder) const;
  void drop_durable(const std::string& why);
  void drop_durable_after(std::int64_t step, const std::string& why);
  void end_durable();
  void on_durable();
  void on_durable_shards(const std::string& folder, std::int64_t ranks, std::int64_t bytes);
  void on_durable_complete(const DurableCopier::Result& result);
  void durable_failed(const DurableFailed& m, const std::string& node);
  void require_own_tier(const io::CheckpointStore& durable, bool reachable) const;
  void check_durable_hangs();
  void copy_from_memory(std::int64_t step);
  void end_copy_from_memory();
  void release_copied(std::int64_t step);
  void drain_durable();
  // The save interval (run_cadence.cpp).
  void begin_cadence();
  void send_cadence();
  // Copies in a partner node's memory (run_partner.cpp).
  void begin_partner();
  void copy_held(std::int64_t step, SnapshotUse use);
  void send_copy(const HeldStep& held);
  void on_partner();
  void copied(std::int64_t node, const SnapshotCopied& m);
  void free_kept();
  void keep_taken(std::int64_t step, const std::vector<std::int64_t>& segments, bool until_newer);
  void keep_copies(std::int64_t kept_by_all, std::int64_t next);
  bool taken(const HeldStep& held) const;
  void forget_copies(const Go& go);
  const HeldStep* held_for(const Go& go);
  const HeldStep* fetch(const Go& go);
  std::vector<HeldCopy> held_copies() const;
  std::optional<InMemory> newest_in_memory(bool without_node) const;
  bool may_return(std::int64_t node) const;
  bool may_join_again() const;
  void lose_for_now(std::int64_t node, const std::string& why);
  void fail_without(std::int64_t node, const std::string& why);
  void give_up_incomplete_saves();
  void give_up_saves_of_lost();
  bool await_return();
  std::string names_of(const std::set<std::int64_t>& nodes) const;
  void record_nodes();
  // Snapshots that survive elsewhere (run_states.cpp).
  io::TrainingState training_state(std::int64_t step, std::int64_t cursor, std::int64_t tokens) const;
  NodeCopy copy_of(const HeldStep& held) const;
  std::vector<HeldState> held_states() const;
  void keep_states();
  void forget_survived(bool newer_are_safe);
  void keep_only(const StateCut& cut, bool begins_from_it);
  void begin_exchange();
  void meet_exchange(std::int64_t attempt);
  std::optional<StateChoice> choose_in_memory(std::int64_t most_step, const Turn& turn);
  std::optional<io::CheckpointStore::Found> find_in_memory();
  void wait_for_news(double seconds);
  bool gather(const Go& go);
  // The job's faults (run_faults.cpp).
  io::CheckpointStore run_store() const;
  io::CheckpointStore tier_store() const;
  void begin_faults();
  void break_checkpoint(std::int64_t step, const std::string& folder);
  void on_changed_state(const ResultsDiffer& m);
  void end_corrupt(const std::string& what, const CopyVerdict& verdict, std::int64_t sound_step);
  void begin_sound();  // with the two before and the five after: run_copies.cpp
  std::int64_t trusted_step() const;
  void distrust_checkpoints_after(std::int64_t step);
  void withdraw_checkpoints(std::int64_t sound_step, bool in_tier);
  void withdraw_folders(bool in_tier, const std::set<std::string>& folders, std::int64_t sound_step);
  void await_dropped_copy();
  // Records (run_records.cpp).
  void announce() const;
  std::string layout_text() const;
  std::string hosts_text() const;
  std::unique_ptr<io::ReportSink> report_sink() const;
  void open_sinks();
  void send_metrics();
  void serve_metrics(const io::MetricsOptions& metrics);
  void open_trackers();
  void remove_left_targets() const;
  void compare_with_plan();
  std::vector<std::int64_t> samples_of_sources(std::int64_t first, std::int64_t count) const;
  void finish(const std::string& outcome);
  io::RunInfo run_info() const;
  void warn_early(const std::string& message);
  void record(io::NoticeKind kind, const std::string& message, std::vector<std::string> details = {});
  void record_begin();
  void record_done();
  void record_failure(const std::string& error);
  void record_refused(const std::string& error);
  void watch_outlets();
  std::vector<std::string> flight_lines() const;
  void log_flights() const;

  const AgentOptions& options_;
  const job::JobSpec& job_;
  Membership& membership_;
  double begin_ = base::monotonic_seconds();
  OutputDirectory output_;
  parallel::Topology topology_;
  std::optional<Planned> planned_;       ///< on the leader, until training starts
  std::optional<PlanCheck> plan_check_;  ///< on the leader, while training
  std::shared_ptr<io::StorageFault> disk_fault_ = std::make_shared<io::StorageFault>();
  std::shared_ptr<io::StorageFault> tier_fault_ = std::make_shared<io::StorageFault>();
  io::CheckpointStore store_;
  std::optional<NodeSnapshots> snapshots_;
  CheckpointWriter writer_;
  std::optional<MetricsFile> metrics_file_;
  std::optional<DiscoveryFile> discovery_file_;
  std::map<std::string, std::string> environment_;  ///< of the ranks that filled the snapshots
  std::map<std::int64_t, Saving> saving_;           ///< by step: checkpoints that are not complete
  std::unique_ptr<Partner> partner_;                ///< of a job with checkpoint.partner
  std::map<std::int64_t, Kept> kept_;        ///< by step: not to be filled, though no writer needs them
  std::optional<std::int64_t> sent_step_;    ///< on its way to the partner
  std::optional<std::int64_t> wanted_copy_;  ///< by the leader, of a step that is not whole here yet
  std::optional<std::int64_t> copied_step_;  ///< the leader's: on its way from some node
  std::set<std::int64_t> copying_;           ///< the leader's: nodes that have not sent it yet
  bool copy_missing_ = false;                ///< the leader's: some partner did not get `copied_step_`
  /// The last step whose copies of all nodes are kept, and what followed it: their segments stay taken, so
  /// that this node has a step of its own for what another's partner keeps.
  std::set<std::int64_t> copies_;
  std::int64_t kept_by_all_ = -1;
  bool copies_fail_ = false;
  bool without_memory_ = false;  ///< the partners' copies cannot be used for the next attempt
  // On the leader:
  std::set<std::int64_t> away_;  ///< lost nodes whose places must be taken before the next attempt
  std::set<std::int64_t> back_;  ///< the nodes of `away_` whose places are taken again
  bool resizes_ = false;         ///< the run continues with another number of nodes
  bool grows_ = false;           ///< on the leader: the run stops in order to continue with more nodes
  bool saves_fail_ = false;      ///< saves have failed since the last complete one
  /// By step, if above 1: attempt number of its next folder. The same on all nodes.
  std::map<std::int64_t, std::int64_t> folders_;
  RunSinks sinks_;
  std::vector<std::string> early_warnings_;  ///< logged before the sinks were open
  Start start_;                              ///< of the present attempt, for every rank
  std::int64_t first_step_ = 0;              ///< done when this process began
  SurvivingStates surviving_;
  std::optional<io::EarlierAttempt> earlier_;  ///< the leader's
  io::EarlierRun earlier_run_;                 ///< the leader's
  bool begun_ = false;                         ///< is in the records
  bool sinks_started_ = false;                 ///< `on_start` was called
  std::optional<io::TrainingState> resumed_;
  DataSeen data_;
  hf::Origin origin_;  ///< the weights that training began from, in this or an earlier attempt
  std::vector<hf::TokenizerFile> tokenizer_;   ///< the model's, to copy into the output; empty: none
  std::optional<io::Blend> blend_;             ///< if the data has several sources
  io::DataFiles files_;                        ///< opens the data
  std::vector<io::SourceState> gone_sources_;  ///< on the leader: sources that the job no longer names
  std::vector<io::NoticeRecord> changes_;      ///< since the checkpoint; for the sinks once all are ready
  std::int64_t step_ = 0, tokens_ = 0;
  std::int64_t evaluated_step_ = 0;  ///< last step whose evaluation is recorded or was not due
  std::deque<std::pair<std::int64_t, double>>
      latest_steps_;                 ///< step and seconds of steps that may be done again
  double last_step_at_ = 0;          ///< wall time
  std::int64_t completed_step_ = 0;  ///< step of the checkpoint that this run completed last
  std::string last_good_ = "none";   ///< the checkpoint that this run verified or wrote last
  StopSignals signals_;              ///< signals to this agent
  std::optional<StopRequest> stop_;  ///< requested at this agent or another
  std::optional<TimeLimit> time_limit_;
  std::optional<GoodTags> good_tags_;  ///< on the leader
  std::string candidate_;              ///< folder of the checkpoint that is the candidate for the good tag
  std::optional<Cadence> cadence_;     ///< on the leader, with checkpoint.every: auto
  double sent_interval_seconds_ = 0;
  bool slow_gemms_reported_ = false, attention_reported_ = false;
  std::int64_t refused_reported_ = 0;  ///< number of refused connections
  bool killed_ = false;                ///< stopped at once, without waiting for anything
  bool stop_between_ = false;          ///< stopped between two attempts, or before training began
  std::string leaderless_;             ///< not empty if the leader, or this agent's lead, is lost: why
  bool lost_node_ = false;             ///< a node is lost for good; the workers do not start again
  std::optional<FaultLog> fault_log_;  ///< on the leader of a job with faults
  std::optional<CheckpointFaults> checkpoint_faults_;  ///< of a job with faults
  ComparedStates compared_;                            ///< on the leader
  std::optional<DifferenceWatch> differences_;         ///< on the leader, for one attempt
  std::int64_t differences_attempt_ = 0;               ///< number of that attempt
  std::optional<SpikeActed> rollback_;                 ///< on the leader: the rollback to do
  std::optional<std::int64_t> first_cursor_;           ///< first sample of a run that skips samples
  /// Folders that the present attempt completed, and their copies in the durable tier. Only these are
  /// withdrawn after a corruption: an earlier attempt compared its own states.
  std::set<std::string> completed_folders_, copied_folders_;
  std::string dropped_copy_;  ///< the copy that was under way when a corruption or rollback dropped it
  // Between two attempts.
  RunSeries& series_;
  CountedFailure failed_;  ///< the latest failure, on the leader
  RestartBudget& restarts_;
  std::optional<double> done_at_;                 ///< when only the workers' exits were missing
  std::int64_t restarted_ = 0;                    ///< number of restarts by this process
  std::optional<io::Recovery> recovery_;          ///< on the leader, from a failure until the next step
  double failure_noticed_ = 0, ranks_begin_ = 0;  ///< its times, by the monotonic clock
  bool regroup_asked_ = false;                    ///< by the leader
  std::map<std::int64_t, Held> held_;             ///< on the leader: by node
  /// On the leader until the next attempt begins: snapshots of later steps must not become checkpoints.
  std::optional<std::int64_t> dropped_after_;
  std::optional<Go> next_;  ///< the next attempt, as the leader begins it
  RankSupervisor ranks_{*this};
  DeviceSupervisor devices_{*this};
  // Last: it speaks of the run until it is gone.
  std::unique_ptr<Attempt> attempt_;
  CheckpointParts parts_;  ///< on the leader of several nodes
  std::optional<DurableCopier> copier_;
  std::optional<DurableTier> durable_;  ///< the leader's
  std::string early_choice_;            ///< which of the places it goes on from, before the sinks were open
  std::optional<DurableTier::Copy> left_to_copy_;         ///< that the durable tier lacks at the start
  std::map<std::int64_t, std::int64_t> durable_folders_;  ///< the next attempt there, by complete step
  std::int64_t kept_elsewhere_ = -1;  ///< step of a snapshot that is in the tier, and not in the directory
  io::TrainingState memory_state_;    ///< of the newest snapshot
  PreflightWatch preflight_{*this};
};

}  // namespace trainerd::core::run
