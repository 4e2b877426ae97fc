#include <algorithm>
#include <bit>
#include <utility>

#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "io/checkpoint/files.h"
#include "io/checkpoint/folders.h"
#include "io/checkpoint/tiers.h"
#include "io/s3_storage/s3_storage.h"
#include "io/storage/file_errors.h"
#include "io/text/text.h"
#include "kernels/base/error.h"

// Part of the run (run.h): copies of complete checkpoints in the durable tier. The leader chooses the
// checkpoint, each node copies the shards of its ranks, and the leader completes the copy. Training never
// waits for it: a failing copy is tried again in the background and does not end the run.

namespace trainerd::core::run {
namespace {

// Time limits at the end: of a run that is done, of one whose copy fails, and of a stopped run, which its
// scheduler will kill soon.
constexpr double kDurableDoneSeconds = 300, kDurableFailingSeconds = 60;
constexpr double kDurableStoppedSeconds = 20;
// Per request of a copy. After that the copy fails, is reported, and is tried again as a whole.
constexpr double kRequestGivesUpSeconds = 10;

}  // namespace

io::OpenRemote remote_storages(const AgentOptions& options) {
  if (!options.find_s3) return {};
  return io::remote_storages([find = options.find_s3] {
    io::S3Settings settings = find();
    settings.give_up_seconds = settings.first_seconds = kRequestGivesUpSeconds;
    return settings;
  });
}

io::CheckpointStore durable_store(const AgentOptions& options) {
  const io::DurableOptions& durable = options.job.checkpoint.durable;
  return {io::open_storage(durable.to, remote_storages(options)),
          {.keep = durable.keep, .keep_every = durable.keep_every}};
}

std::string durable_owner(const AgentOptions& options) {
  return io::tier_owner(options.job.name, options.job.output);
}

/// Called before anything is copied to the tier. Throws SpecError if it belongs to another run.
void Run::require_own_tier(const io::CheckpointStore& durable, bool reachable) const {
  if (sinks_started_) return;  // an earlier attempt did this
  const std::string& to = job_.checkpoint.durable.to;
  if (!io::is_remote(to) &&
      (io::is_same_directory(to, output_.path()) || io::is_same_directory(to, output_.checkpoints())))
    throw base::spec_error("checkpoint.durable.to, " + to + ", is the run's own directory, " +
                           output_.path() + ": name another place");
  if (!reachable) return;
  try {
    io::require_tier_of(*durable.storage(), durable_owner(options_));
  } catch (const io::StorageError& error) {
    log::warn("the owner of the durable tier cannot be read: {}", error.what());  // the copier checks again
  }
}

void Run::begin_durable() {
  const io::DurableOptions& options = job_.checkpoint.durable;
  if (!options.on()) return;
  copier_.emplace(store_, DurableCopier::Options{.open = [this] { return tier_store(); },
                                                 .owner = membership_.leads() ? durable_owner(options_) : "",
                                                 .rate_bytes_per_second = options.rate_bytes_per_second});
  if (!membership_.leads()) return;
  durable_.emplace(options);
  log::info("durable tier: {}", options.to);
  if (!left_to_copy_) return;
  // The previous run may have ended while it was copied. Its layout, and so its shards, may be another.
  store_.pinned().pin(left_to_copy_->folder);
  durable_->add(*std::exchange(left_to_copy_, std::nullopt));
  durable_next();
}

/// Folder name of a copy in the tier. A complete copy there is not overwritten.
std::string Run::durable_target(std::int64_t step, const std::string& folder) const {
  const auto there = durable_folders_.find(step);
  const std::int64_t attempt = io::parse_folder(folder)->attempt;
  return io::folder_name(step, there == durable_folders_.end() ? attempt : std::max(attempt, there->second));
}

/// A checkpoint in the run's directory is complete. Queues its copy if one is due.
void Run::copy_durably(std::int64_t step, const std::string& folder) {
  if (!durable_ || durable_->copies(folder)) return;
  const bool last = stop_ || step >= job_.steps;
  if (!last && !durable_->is_due(step, base::monotonic_seconds())) return;
  store_.pinned().pin(folder);
  const auto before = durable_->add({.step = step,
                                     .folder = folder,
                                     .target = durable_target(step, folder),
                                     .ranks = attempt_->plan().layout.grid.ranks()});
  if (before) store_.pinned().unpin(*before);
  durable_next();
}

void Run::durable_next() {
  if (compared_.equal_until) return;  // the state may be corrupt
  if (durable_->is_superseded()) drop_durable("a newer checkpoint takes its place");
  auto copy = durable_->begin(base::monotonic_seconds());
  if (!copy) return;
  if (copy->from_memory || completed_folders_.contains(copy->folder)) copied_folders_.insert(copy->target);
  if (copy->by_leader)
    return copier_->enqueue(
        {.step = copy->step, .folder = copy->folder, .target = copy->target, .ranks = copy->ranks});
  const DurableBegin begin{copy->step, copy->folder, copy->target};
  if (!membership_.alone()) membership_.send(begin);
  copy_shards_durably(begin);
}

void Run::copy_shards_durably(const DurableBegin& m) {
  const NodeRanks& here = attempt_->plan().here;
  copier_->enqueue({.step = m.step,
                    .folder = m.folder,
                    .target = m.target,
                    .first_rank = here.first,
                    .ranks = here.count});
}

/// On the leader: stops the copy under way on all nodes.
void Run::drop_durable(const std::string& why) {
  const DurableTier::Copy copy = *durable_->copying();
  log::warn("the durable copy of step {} is dropped: {}", copy.step, why);
  copier_->drop(copy.folder);
  if (!membership_.alone()) membership_.send(DurableDrop{copy.folder});
  if (!copy.from_memory) store_.pinned().unpin(copy.folder);
  durable_->drop();
}

/// Drops the copy under way if it is of a later step than `step`. `await_dropped_copy` waits for its end.
void Run::drop_durable_after(std::int64_t step, const std::string& why) {
  if (!durable_ || !durable_->copying() || durable_->copying()->step <= step) return;
  dropped_copy_ = durable_->copying()->folder;
  drop_durable(why);
}

void Run::end_durable() {
  if (!durable_->copying()->from_memory) store_.pinned().unpin(durable_->copying()->folder);
  durable_->end();
}

void Run::on_durable() {
  auto result = copier_->take();
  if (!result) return;
  if (result->from_memory && result->outcome != DurableCopier::Outcome::failed) release_copied(result->step);
  const bool leads = membership_.leads();
  if (result->part == DurableCopier::Part::tag) {
    if (!result->problem.empty())
      log::warn("the checkpoint of step {} in the durable tier could not be tagged good: {}", result->step,
                result->problem);
    return;
  }
  if (leads && !durable_->copies(result->folder)) return;  // dropped meanwhile
  switch (result->outcome) {
    case DurableCopier::Outcome::copied:
      if (result->part == DurableCopier::Part::completion) return on_durable_complete(*result);
      if (result->from_memory) {
        durable_->copying()->manifest = io::to_json(memory_state_, result->written);
        io::parse_manifest(durable_->copying()->manifest);
      }
      if (leads) return on_durable_shards(result->folder, result->ranks, result->bytes);
      return membership_.send(DurableShards{result->folder, result->ranks, result->bytes});
    case DurableCopier::Outcome::dropped: return;
    case DurableCopier::Outcome::gone:
    case DurableCopier::Outcome::failed: {
      const DurableFailed failed{result->step,     result->folder,
                                 result->problem,  result->retry_seconds,
                                 result->failures, result->outcome == DurableCopier::Outcome::gone};
      if (leads) return durable_failed(failed, "");
      return membership_.send(failed);
    }
  }
}

void Run::on_durable_shards(const std::string& folder, std::int64_t ranks, std::int64_t bytes) {
  if (!durable_ || !durable_->copies(folder)) return;
  DurableTier::Copy& copy = *durable_->copying();
  copy.bytes += bytes;
  copy.ranks_left -= ranks;
  copy.failing_since = 0;
  if (copy.ranks_left > 0) return;
  copier_->enqueue({.part = DurableCopier::Part::completion,
                    .step = copy.step,
                    .folder = copy.folder,
                    .target = copy.target,
                    .manifest = copy.manifest});
}

void Run::on_durable_complete(const DurableCopier::Result& result) {
  const DurableTier::Copy copy = *durable_->copying();
  const double seconds = base::monotonic_seconds() - copy.begun;
  sinks_.each(&io::MetricsSink::on_durable, io::DurableRecord{.step = copy.step, .bytes = copy.bytes});
  notify(io::NoticeKind::durable,
         "the checkpoint of step " + std::to_string(copy.step) + " is in the durable tier: " + result.path +
             ", " + io::with_unit(static_cast<double>(copy.bytes), "B") + " sent in " +
             io::short_duration(seconds) + (copy.from_memory ? ", from the snapshot in memory" : ""));
  if (!result.problem.empty()) log::warn("it could not be tagged good there: {}", result.problem);
  if (!result.left_over.empty())
    notify(io::NoticeKind::warning,
           "older checkpoints of the durable tier could not be removed, which is tried again after the next "
           "one: " +
               result.left_over);
  if (copy.from_memory) {
    last_good_ = result.path;
    writer_.kept_elsewhere();
    kept_elsewhere_ = copy.step;
  }
  end_durable();
  durable_next();
}

/// `node`: where the copy failed; empty if here.
void Run::durable_failed(const DurableFailed& m, const std::string& node) {
  if (!durable_ || !durable_->copies(m.folder)) return;
  if (m.gone) {
    drop_durable("it is not in the run's directory any more");
    return durable_next();
  }
  DurableTier::Copy& copy = *durable_->copying();
  const double now = base::monotonic_seconds();
  if (copy.failing_since == 0) copy.failing_since = now;
  sinks_.each(&io::MetricsSink::on_durable, io::DurableRecord{.step = m.step, .failed = true});
  if (std::has_single_bit(static_cast<unsigned>(m.failures)))
    notify(io::NoticeKind::warning,
           "the checkpoint of step " + std::to_string(m.step) + " could not be copied to the durable tier" +
               (node.empty() ? "" : " by " + node) + ", try " + std::to_string(m.failures) + ": " +
               m.message +
               (m.retry_seconds > 0 ? "; the next try is in " + io::short_duration(m.retry_seconds) : "") +
               "; training goes on");
  if (now - copy.failing_since >= job_.checkpoint.give_up_seconds) {
    notify(io::NoticeKind::warning, "the durable copy of step " + std::to_string(m.step) +
                                        " is given up after " + io::short_duration(now - copy.failing_since) +
                                        " (checkpoint.give_up); the next checkpoint is tried again");
    drop_durable("it is given up");
  }
  durable_next();
}

/// A call that does not return gives no result, so this is checked at each complete checkpoint.
void Run::check_durable_hangs() {
  if (!copier_) return;
  const auto hung = copier_->hung(job_.checkpoint.give_up_seconds);
  if (!hung) return;
  DurableFailed failed{hung->step, hung->folder, hung->problem, 0, hung->failures, false};
  if (!membership_.leads()) return membership_.send(failed);
  if (const DurableTier::Copy* copy = durable_->copying()) {  // the hung job may be that of a tag
    failed.step = copy->step;
    failed.folder = copy->folder;
  }
  durable_failed(failed, "");
}

/// The run's directory cannot be written: copies the snapshot from memory to the tier, on one node only. The
/// copy is dropped when the next snapshot is to be saved, since training waits for no copy.
void Run::copy_from_memory(std::int64_t step) {
  if (!durable_ || !membership_.alone() || !durable_->idle()) return;
  const auto saving = saving_.find(step);
  const HeldStep* held = snapshots_->find(step);
  if (saving == saving_.end() || saving->second.dropped || held == nullptr || memory_state_.step != step)
    return;
  const NodeRanks& here = attempt_->plan().here;
  const std::string folder = io::folder_name(step, saving->second.folder);
  DurableCopier::Job job{
      .step = step, .folder = folder, .target = durable_target(step, folder), .ranks = here.count};
  for (std::int64_t i = 0; i < here.count; ++i) {
    job.memory.push_back(snapshots_->segment(here.first + i, held->segments.at(static_cast<std::size_t>(i))));
    job.shards.push_back({job.memory.back()->bytes().first(
                              static_cast<std::size_t>(held->bytes.at(static_cast<std::size_t>(i)))),
                          snapshots_->slices(here.first + i)});
  }
  saving->second.copied = true;
  durable_->add(
      {.step = step, .folder = folder, .target = job.target, .ranks = here.count, .from_memory = true});
  durable_->begin(base::monotonic_seconds());
  copier_->enqueue(std::move(job));
}

/// Drops a copy from memory, because the segments of its snapshot are needed.
void Run::end_copy_from_memory() {
  if (durable_ && durable_->copying() != nullptr && durable_->copying()->from_memory &&
      durable_->copying()->ranks_left > 0)
    drop_durable("a newer snapshot takes its place");
}

void Run::release_copied(std::int64_t step) {
  const auto saving = saving_.find(step);
  if (saving == saving_.end() || !std::exchange(saving->second.copied, false)) return;
  if (saving->second.released) release(step);
}

/// At the end of the run: waits for the copy of the last checkpoint, for a limited time.
void Run::drain_durable() {
  if (!durable_ || durable_->idle() || killed_) return;
  const double begin = base::monotonic_seconds();
  const auto left = [&] {
    const DurableTier::Copy* copy = durable_->copying();
    const bool fails = copy != nullptr && copy->failing_since > 0;
    const double seconds = stop_   ? kDurableStoppedSeconds
                           : fails ? kDurableFailingSeconds
                                   : kDurableDoneSeconds;
    return begin + seconds - base::monotonic_seconds();
  };
  log::info("the copy to the durable tier {} has up to {} to end", job_.checkpoint.durable.to,
            io::short_duration(left()));
  while (!durable_->idle() && !killed_ && !lost_node_ && left() > 0) wait_for_events(left());
  if (durable_->idle() || killed_) return;
  notify(io::NoticeKind::warning,
         "the checkpoint of the last step is not in the durable tier " + job_.checkpoint.durable.to +
             " yet: the next run of this job copies it, and sends only what is missing");
}

void Run::on_message(std::int64_t, const DurableBegin& m) { copy_shards_durably(m); }

void Run::on_message(std::int64_t, const DurableDrop& m) { copier_->drop(m.folder); }

void Run::on_message(std::int64_t, const DurableShards& m) { on_durable_shards(m.folder, m.ranks, m.bytes); }

void Run::on_message(std::int64_t node, const DurableFailed& m) {
  durable_failed(m, membership_.name_of(node));
}

}  // namespace trainerd::core::run
