
#include <bit>

#include "core/run/agent/agent_state.h"
#include "core/run/log/log.h"
#include "core/train/snapshot.h"
#include "io/text/text.h"
#include "kernels/base/error.h"

// Part of the agent (agent_state.h): the way of snapshots to the disk, on one node or several. Training does
// not wait for a disk that fails: the writer tries again, and a newer snapshot takes the place of one that
// cannot be written.

namespace trainerd::core {
namespace {

// Tries of the last checkpoint: a scheduler that stops a run kills it soon after; a run that is done can wait
// a little longer.
constexpr double kStoppedSeconds = 20;
constexpr double kDoneSeconds = 60;

}  // namespace

void Agent::handle(std::int64_t rank, const SnapshotReady& m) {
  workers_.at(static_cast<std::size_t>(rank - here_.first)).snapshots.push_back(m);
  save_complete_steps();
}

/// A step is a checkpoint when every rank has saved it. Ranks fill their segments in the same turn.
void Agent::save_complete_steps() {
  for (;;) {
    CheckpointWriter::Job job{
        .part = membership_.alone() ? CheckpointWriter::Part::all : CheckpointWriter::Part::shards,
        .first_rank = here_.first};
    for (Worker& worker : workers_) {
      if (worker.snapshots.empty()) return;
      const SnapshotReady& m = worker.snapshots.front();
      base::check(ready_.contains(worker.rank), "a worker is ready before it saves");
      const Ready& ready = ready_.at(worker.rank);
      base::check(worker.rank == here_.first || (m.step == job.state.step && m.segment == job.segment),
                  "ranks save the same steps in turn");
      if (worker.rank == here_.first) {
        job.segment = m.segment;
        job.state = {m.step, m.cursor, m.tokens, job_.seed, checkpoint_identity(job_), ready.environment};
        job.state.order_start = start_.order_start;
        job.state.order_stream = start_.order_stream;
        job.state.job = start_.job_yaml;
        record_data(data_, job.state);
      }
      job.memory.push_back(worker.segments.at(static_cast<std::size_t>(m.segment)));
      job.shards.push_back(
          {job.memory.back()->bytes().first(static_cast<std::size_t>(m.bytes)), ready.slices});
      job.snapshot_seconds = std::max(job.snapshot_seconds, m.seconds);
    }
    for (Worker& worker : workers_) worker.snapshots.pop_front();
    saving_[job.state.step] = {.segment = job.segment};
    if (membership_.leads() && !membership_.alone()) parts_.begin(job.state);
    writer_.enqueue(std::move(job));
    if (saves_fail_) delay_saves();
  }
}

/// No more snapshots come from this node's ranks.
void Agent::handle(std::int64_t rank, const Finished& m) {
  finished_[rank] = m;
  for (std::int64_t own = here_.first; own < here_.first + here_.count; ++own)
    if (!finished_.contains(own)) return;
  writer_.end_within(m.stopped ? kStoppedSeconds : kDoneSeconds);
}

void Agent::on_message(std::int64_t, const ShardsSaved& m) {
  std::vector<io::WrittenShard> written;
  for (const io::ShardInfo& shard : m.shards)
    written.push_back({shard, ready_.at(m.first_rank + static_cast<std::int64_t>(written.size())).slices});
  if (auto job = parts_.add(m.step, m.first_rank, std::move(written), m.snapshot_seconds, m.write_seconds))
    writer_.enqueue(*std::move(job));
}

void Agent::on_saved() {
  auto result = writer_.take();
  if (!result || result->part == CheckpointWriter::Part::discard) return;
  const std::int64_t step = result->step;
  switch (result->outcome) {
    case CheckpointWriter::Outcome::written: return on_written(*std::move(result));
    case CheckpointWriter::Outcome::failed_once: {
      const SaveFailed failed{step, result->problem, result->retry_seconds, result->failures};
      membership_.send(failed);
      return save_failed(failed, "");
    }
    case CheckpointWriter::Outcome::superseded:
      if (const auto saving = saving_.find(step); saving != saving_.end()) saving->second.in_use = false;
      if (membership_.leads()) return drop_save(step);
      membership_.send(SaveDropped{step});
      release(step);
      return delay_saves();
    case CheckpointWriter::Outcome::given_up:
      sinks_.each(&io::MetricsSink::on_checkpoint_failure, io::CheckpointFailureRecord{.step = step});
      if (result->failures == 0) std::rethrow_exception(result->error);
      throw base::checkpoint_error(
          "the checkpoint of step " + std::to_string(step) + " could not be written in " +
          std::to_string(result->failures) +
          (result->failures == 1 ? " try" : " tries over " + io::short_duration(result->failing_seconds)) +
          ": " + result->problem + "; the last checkpoint is " + last_good_);
  }
}

void Agent::on_written(CheckpointWriter::Result result) {
  if (result.failures > 0)
    notify(io::NoticeKind::warning, "checkpoints can be written again: that of step " +
                                        std::to_string(result.step) + " was, after " +
                                        std::to_string(result.failures) + " failed tries in " +
                                        io::short_duration(result.failing_seconds));
  if (time_limit_) time_limit_->add_save(result.record.snapshot_seconds + result.record.write_seconds);
  if (result.part == CheckpointWriter::Part::shards) return on_shards(std::move(result));
  result.record.wall_time = base::wall_seconds();
  sinks_.each(&io::MetricsSink::on_checkpoint, result.record);
  if (!result.left_over.empty()) {
    sinks_.each(&io::MetricsSink::on_checkpoint_failure,
                io::CheckpointFailureRecord{.step = result.step,
                                            .what = io::CheckpointFailureRecord::What::clean_up});
    notify(io::NoticeKind::warning,
           "older checkpoints could not be removed, which is tried again after the next one: " +
               result.left_over);
  }
  completed(result.step, result.record.path);
}

/// This node's shards of a checkpoint are on the disk: the leader completes it when all are.
void Agent::on_shards(CheckpointWriter::Result result) {
  const io::CheckpointRecord& record = result.record;
  const auto saving = saving_.find(record.step);
  base::check(saving != saving_.end(), "shards that were written are of a checkpoint under way");
  saving->second.in_use = false;
  if (saving->second.dropped) return release(record.step);
  if (membership_.leads()) {
    auto job = parts_.add(record.step, here_.first, std::move(result.written), record.snapshot_seconds,
                          record.write_seconds);
    if (job) writer_.enqueue(*std::move(job));
    return;
  }
  ShardsSaved message{record.step, here_.first, {}, record.snapshot_seconds, record.write_seconds};
  for (io::WrittenShard& shard : result.written) message.shards.push_back(std::move(shard.info));
  membership_.send(message);
}

void Agent::completed(std::int64_t step, const std::string& path) {
  last_good_ = path;
  saves_fail_ = false;
  if (membership_.leads()) membership_.send(Completed{step, path});
  base::check(saving_.contains(step), "a checkpoint that is complete was saved here too");
  release(step);
}

/// Ranks that wait for a checkpoint go on: the next try may be a minute away.
void Agent::delay_saves() {
  saves_fail_ = true;
  for (const auto& [step, saving] : saving_)
    for (Worker& worker : workers_) send(worker, SnapshotDelayed{saving.segment});
}

/// Its segments can be filled again.
void Agent::release(std::int64_t step) {
  const auto saved = saving_.extract(step);
  if (saved.empty()) return;
  for (Worker& worker : workers_) send(worker, SnapshotSaved{saved.mapped().segment});
}

/// A node could not write its shards, or the leader the rest: no node waits for this checkpoint any more.
void Agent::drop_save(std::int64_t step) {
  if (membership_.leads() && !membership_.alone()) {
    parts_.drop(step);
    membership_.send(SaveDropped{step});
    CheckpointWriter::Job discard{.part = CheckpointWriter::Part::discard};
    discard.state.step = step;
    writer_.enqueue(std::move(discard));
  }
  if (const auto saving = saving_.find(step); saving != saving_.end()) {
    saving->second.dropped = true;
    if (!saving->second.in_use) release(step);
  }
  delay_saves();
}

/// `node`: where, if not here.
void Agent::save_failed(const SaveFailed& m, const std::string& node) {
  delay_saves();
  sinks_.each(&io::MetricsSink::on_checkpoint_failure, io::CheckpointFailureRecord{.step = m.step});
  if (!std::has_single_bit(static_cast<unsigned>(m.failures))) return;  // the 1st, 2nd, 4th, 8th, ...
  notify(io::NoticeKind::warning,
         "the checkpoint of step " + std::to_string(m.step) + " could not be written" +
             (node.empty() ? "" : " by " + node) + ", try " + std::to_string(m.failures) + ": " + m.message +
             "; the next try is in " + io::short_duration(m.retry_seconds) + ", training goes on for up to " +
             io::duration_text(job_.checkpoint.give_up_seconds) + " (checkpoint.give_up)");
}

void Agent::on_message(std::int64_t node, const SaveFailed& m) {
  if (membership_.leads()) {
    membership_.send(m);
    save_failed(m, membership_.name_of(node));
  } else {
    delay_saves();
  }
}

}  // namespace trainerd::core
