
#include <bit>

#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "core/train/snapshot.h"
#include "io/checkpoint/folders.h"
#include "io/text/text.h"
#include "kernels/base/error.h"

// Part of the run (run.h): snapshots on their way to the disk, on one node or several. Training does not wait
// for a failing disk: the writer tries again, and a newer snapshot replaces one that cannot be written.

namespace trainerd::core::run {
namespace {

// Time limits for the last checkpoint. A scheduler kills a stopped run soon; a run that is done can wait
// longer.
constexpr double kStoppedSavesSeconds = 20;
constexpr double kDoneSavesSeconds = 60;
// Number of latest steps whose folders are remembered. Earlier steps are not saved again.
constexpr std::size_t kFoldersKnown = 1000;

}  // namespace

void Run::on_snapshot(HeldStep held, SnapshotUse use, double seconds,
                      const std::map<std::string, std::string>& environment) {
  environment_ = environment;
  held.attempt = attempt_->number();
  if (use == SnapshotUse::checkpoint) save_held(held, seconds);
  sinks_.each(&io::MetricsSink::on_snapshot, io::SnapshotRecord{.step = held.step, .seconds = seconds});
  const std::int64_t step = held.step;
  snapshots_->add(std::move(held));
  if (!partner_) forget_survived(membership_.alone() || snapshots_->held().size() > 1);
  if (saves_fail_) delay_saves();
  if (partner_) copy_held(step, use);
  else free_kept();  // a newer one is there, also while none reaches the disk
  if (const auto saving = saving_.find(step);
      saving != saving_.end() && saving->second.dropped && !saving->second.in_use)
    release(step);
}

/// Starts writing a snapshot that all ranks of this node have filled, unless another node has given the
/// checkpoint up already or the state is corrupt.
void Run::save_held(const HeldStep& held, double seconds) {
  const NodeRanks& here = attempt_->plan().here;
  const bool alone = membership_.alone();
  CheckpointWriter::Job job{.part = alone ? CheckpointWriter::Part::all : CheckpointWriter::Part::shards,
                            .first_rank = here.first};
  job.state = training_state(held.step, held.cursor, held.tokens);
  job.snapshot_seconds = seconds;
  for (std::int64_t i = 0; i < here.count; ++i) {
    const std::int64_t rank = here.first + i, bytes = held.bytes.at(static_cast<std::size_t>(i));
    job.memory.push_back(snapshots_->segment(rank, held.segments.at(static_cast<std::size_t>(i))));
    job.shards.push_back(
        {job.memory.back()->bytes().first(static_cast<std::size_t>(bytes)), snapshots_->slices(rank)});
  }
  // On a job of one node the store picks the attempt number.
  job.folder = membership_.job_nodes() == 1 ? 1 : folder_attempt(held.step);
  const bool corrupt = compared_.equal_until && held.step > *compared_.equal_until;
  if (corrupt && !alone) drop_save(held.step);
  folders_[held.step] = job.folder + 1;
  while (folders_.size() > kFoldersKnown) folders_.erase(folders_.begin());
  const bool dropped = corrupt || parts_.dropped(held.step);
  Saving& saving = saving_[held.step] = {.segments = held.segments,
                                         .attempt = attempt_->number(),
                                         .folder = job.folder,
                                         .in_use = !dropped,
                                         .dropped = dropped};
  if (dropped) return;
  job.cancelled = saving.cancelled;
  end_copy_from_memory();
  memory_state_ = job.state;
  if (membership_.leads() && !alone) parts_.begin(job.state, job.folder);
  writer_.enqueue(std::move(job));
}

void Run::on_finished(bool stopped) {
  if (stopped && !stop_) stop_ = devices_.draining();
  if (partner_) {
    partner_->stop_sending();
    copies_.clear();  // no node begins from them any more
    free_kept();
  }
  writer_.end_within(stopped ? kStoppedSavesSeconds : kDoneSavesSeconds);
}

void Run::on_saved() {
  auto result = writer_.take();
  if (!result || result->part == CheckpointWriter::Part::discard) return;
  if (result->part == CheckpointWriter::Part::tag) return on_tagged(*result);
  const std::int64_t step = result->step;
  switch (result->outcome) {
    case CheckpointWriter::Outcome::written: return on_written(*std::move(result));
    case CheckpointWriter::Outcome::failed_once: {
      const SaveFailed failed{step, result->problem, result->retry_seconds, result->failures};
      membership_.send(failed);
      return save_failed(failed, "");
    }
    case CheckpointWriter::Outcome::superseded: {
      if (result->part == CheckpointWriter::Part::completion && saving_in(step, result->folder) == nullptr)
        return;  // it was given up when the workers started again
      const auto saving = saving_.find(step);
      if (saving != saving_.end() && saving->second.dropped) return release(step);
      if (saving != saving_.end()) saving->second.in_use = false;
      if (membership_.leads()) return drop_save(step);
      membership_.send(
          SaveDropped{step, saving == saving_.end() ? attempt_->number() : saving->second.attempt});
      release(step);
      return delay_saves();
    }
    case CheckpointWriter::Outcome::given_up:
      sinks_.each(&io::MetricsSink::on_checkpoint_failure, io::CheckpointFailureRecord{.step = step});
      if (result->failures == 0) std::rethrow_exception(result->error);
      if (step == kept_elsewhere_) {
        notify(io::NoticeKind::warning, "the checkpoint of step " + std::to_string(step) +
                                            " could not be written to the run's directory; it is " +
                                            last_good_ + ": " + result->problem);
        return release(step);
      }
      throw base::checkpoint_error(
          "the checkpoint of step " + std::to_string(step) + " could not be written in " +
          std::to_string(result->failures) +
          (result->failures == 1 ? " try" : " tries over " + io::short_duration(result->failing_seconds)) +
          ": " + result->problem + "; the last checkpoint is " + last_good_);
  }
}

/// A failed tag is only a warning: a later checkpoint gets one.
void Run::on_tagged(const CheckpointWriter::Result& result) {
  unpin_candidate();
  if (result.outcome != CheckpointWriter::Outcome::written)
    return log::warn("the checkpoint of step {} could not be tagged good: {}", result.step, result.problem);
  log::info("the checkpoint of step {} is good: the losses of {} steps after it were in line", result.step,
            job_.checkpoint.good_after);
  if (durable_)
    copier_->enqueue({.part = DurableCopier::Part::tag,
                      .step = result.step,
                      .folder = "the tag of step " + std::to_string(result.step)});
}

/// Gives the loss to the decision on the good tag. The candidate stays pinned, that is not removed, until the
/// verdict.
void Run::judge_checkpoint(std::int64_t step, double loss) {
  const auto verdict = good_tags_ ? good_tags_->on_step(step, loss) : std::nullopt;
  if (!verdict) return;
  if (!verdict->good) return unpin_candidate();
  CheckpointWriter::Job tag{.part = CheckpointWriter::Part::tag};
  tag.state.step = verdict->step;
  writer_.enqueue(std::move(tag));
}

void Run::unpin_candidate() {
  if (!candidate_.empty()) store_.pinned().unpin(std::exchange(candidate_, {}));
}

void Run::on_written(CheckpointWriter::Result result) {
  if (result.failures > 0)
    notify(io::NoticeKind::warning, "checkpoints can be written again: that of step " +
                                        std::to_string(result.step) + " was, after " +
                                        std::to_string(result.failures) + " failed tries in " +
                                        io::short_duration(result.failing_seconds));
  if (time_limit_) time_limit_->add_save(result.record.snapshot_seconds + result.record.write_seconds);
  if (result.part == CheckpointWriter::Part::shards) return on_shards(std::move(result));
  const std::string& path = result.record.path;
  if (membership_.alone()) break_checkpoint(result.step, path.substr(path.rfind('/') + 1));
  if (const std::string moved = output_.keep_lock(); !moved.empty()) notify(io::NoticeKind::warning, moved);
  result.record.wall_time = base::wall_seconds();
  sinks_.each(&io::MetricsSink::on_checkpoint, result.record);
  if (cadence_) {
    cadence_->add_save(result.record.snapshot_seconds, result.record.write_seconds);
    send_cadence();
  }
  if (!result.left_over.empty()) {
    sinks_.each(&io::MetricsSink::on_checkpoint_failure,
                io::CheckpointFailureRecord{.step = result.step,
                                            .what = io::CheckpointFailureRecord::What::clean_up});
    notify(io::NoticeKind::warning,
           "older checkpoints could not be removed, which is tried again after the next one: " +
               result.left_over);
  }
  completed({result.step, result.record.path, result.folder});
}

/// This node's shards of a checkpoint are on the disk. The leader completes it when all shards are.
void Run::on_shards(CheckpointWriter::Result result) {
  const io::CheckpointRecord& record = result.record;
  const auto saving = saving_.find(record.step);
  base::check(saving != saving_.end(), "shards that were written are of a checkpoint under way");
  saving->second.in_use = false;
  if (saving->second.dropped) return release(record.step);
  break_checkpoint(record.step, io::folder_name(record.step, saving->second.folder));
  if (membership_.leads()) {
    auto job = parts_.add(record.step, attempt_->plan().here.first, std::move(result.written),
                          record.snapshot_seconds, record.write_seconds);
    if (job) writer_.enqueue(*std::move(job));
    return;
  }
  for (const ShardsSaved& message :
       in_parts({record.step, attempt_->plan().here.first, std::move(result.written), record.snapshot_seconds,
                 record.write_seconds, saving->second.attempt}))
    membership_.send(message);
}

/// What is saved in that folder of the step; null: it was given up, or is of an agent before this one.
Saving* Run::saving_in(std::int64_t step, std::int64_t folder) {
  const auto saving = saving_.find(step);
  if (saving == saving_.end()) return nullptr;
  return membership_.alone() || saving->second.folder == folder ? &saving->second : nullptr;
}

void Run::completed(const Completed& m) {
  const auto& [step, path, folder] = m;
  const std::string name = path.substr(path.rfind('/') + 1);
  const Saving* saving = saving_in(step, folder);
  if (compared_.checkpoints) {
    compared_.checkpoints->completed(step, name);
    // Its last file was under way when its state was found corrupt, or when the ranks ended and could not
    // compare it any more.
    const bool compared = step <= trusted_step();
    if (((saving == nullptr || saving->dropped) && !compared) ||
        (compared_.equal_until && step > *compared_.equal_until)) {
      completed_folders_.insert(name);
      if (saving != nullptr) release(step);
      return withdraw_folders(false, {name}, step - 1);
    }
  }
  if (membership_.leads()) membership_.send(m);
  if (saving == nullptr || (saving->dropped && !membership_.alone())) {
    // The checkpoint is complete, but the workers have restarted from an earlier step and will do it again.
    if (saving != nullptr) release(step);
    return;
  }
  last_good_ = path;
  completed_step_ = step;
  saves_fail_ = false;
  io::forget_to(latest_steps_, step);
  check_durable_hangs();
  completed_folders_.insert(name);
  if (membership_.leads()) copy_durably(step, name);
  // Near the end of the run there are too few later steps for a verdict.
  const bool in_time = step + job_.checkpoint.good_after <= job_.steps;
  if (good_tags_ && in_time && candidate_.empty() && good_tags_->add(step)) {
    candidate_ = name;
    store_.pinned().pin(name);
  }
  release(step);
}

/// Lets ranks that wait for a checkpoint continue: the next try may be a minute away.
void Run::delay_saves() {
  saves_fail_ = true;
  for (const auto& [step, saving] : saving_) attempt_->send_delayed(saving.segments);
}

/// Frees the segments of the step for new snapshots, unless the durable tier or the partner needs them.
void Run::release(std::int64_t step) {
  if (const auto read = saving_.find(step); read != saving_.end() && read->second.copied) {
    read->second.released = true;
    return;
  }
  const auto saved = saving_.extract(step);
  if (saved.empty()) return;
  // The partner may still need them.
  keep_taken(step, saved.mapped().segments, false);
  free_kept();
}

/// Snapshots of steps that will be done again must not become checkpoints. The segments of a write under way
/// stay taken until it ends (see cancel_dropped).
void Run::drop_saves_after(std::int64_t step) {
  end_copy_from_memory();
  if (good_tags_ && good_tags_->drop_after(step)) unpin_candidate();
  std::vector<std::int64_t> idle;
  for (auto& [saved, saving] : saving_) {
    if (saved <= step) continue;
    saving.dropped = true;
    if (!saving.in_use) idle.push_back(saved);
  }
  for (const std::int64_t saved : idle) release(saved);
}

/// Cancels the writes of dropped snapshots, so that a restart does not wait for a slow disk.
void Run::cancel_dropped() {
  for (auto& [step, saving] : saving_)
    if (saving.dropped && saving.in_use) writer_.cancel(*saving.cancelled);
}

bool Run::stale(std::int64_t step, std::int64_t attempt) const {
  if (dropped_after_) return step > *dropped_after_;
  return attempt < attempt_->number() && step > start_.step;
}

/// A step that is saved again has another folder.
std::int64_t Run::folder_attempt(std::int64_t step) const {
  const auto known = folders_.find(step);
  return known == folders_.end() ? 1 : known->second;
}

std::vector<std::int64_t> Run::busy_segments(std::size_t place) const {
  std::vector<std::int64_t> segments;
  for (const auto& [step, saving] : saving_) segments.push_back(saving.segments.at(place));
  for (const auto& [step, kept] : kept_) segments.push_back(kept.segments.at(place));
  return segments;
}

/// A node could not write its shards, or the leader the rest: no node waits for this checkpoint any more.
void Run::drop_save(std::int64_t step) {
  // An agent that lags behind its ranks takes their snapshot of this step later.
  if (!membership_.alone()) parts_.drop(step);
  if (membership_.leads() && !membership_.alone()) {
    membership_.send(SaveDropped{step, attempt_->number()});
    CheckpointWriter::Job discard{.part = CheckpointWriter::Part::discard};
    discard.state.step = step;
    const auto saving = saving_.find(step);
    discard.folder = saving == saving_.end() ? folder_attempt(step) : saving->second.folder;
    writer_.enqueue(std::move(discard));
  }
  if (const auto saving = saving_.find(step); saving != saving_.end()) {
    saving->second.dropped = true;
    if (!saving->second.in_use) release(step);
  }
  delay_saves();
}

/// `node`: where the save failed; empty if here.
void Run::save_failed(const SaveFailed& m, const std::string& node) {
  delay_saves();
  copy_from_memory(m.step);
  sinks_.each(&io::MetricsSink::on_checkpoint_failure, io::CheckpointFailureRecord{.step = m.step});
  if (!std::has_single_bit(static_cast<unsigned>(m.failures))) return;  // the 1st, 2nd, 4th, 8th, ...
  notify(io::NoticeKind::warning,
         "the checkpoint of step " + std::to_string(m.step) + " could not be written" +
             (node.empty() ? "" : " by " + node) + ", try " + std::to_string(m.failures) + ": " + m.message +
             "; the next try is in " + io::short_duration(m.retry_seconds) + ", training goes on for up to " +
             io::duration_text(job_.checkpoint.give_up_seconds) + " (checkpoint.give_up)");
}

}  // namespace trainerd::core::run
