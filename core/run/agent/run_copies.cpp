#include <poll.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "io/checkpoint/folders.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

// Part of the run (run.h): node 0 compares replicated state, and withdraws checkpoints after a corruption.

namespace trainerd::core::run {
namespace {

/// Weight of a failure that explains all others.
constexpr int kCertain = 3;

}  // namespace

void Run::begin_sound() {
  if (!membership_.leads() || job_.supervise.hash_every == 0) return;
  compared_.checkpoints.emplace(store_.pinned());
  const std::string name = last_good_.substr(last_good_.rfind('/') + 1);
  if (const auto folder = io::parse_folder(name)) compared_.checkpoints->begin(folder->step, name);
}

void Run::on_copies(CopiesHashed m) {
  if (!membership_.leads()) {
    m.attempt = attempt_->number();
    return membership_.send(m);
  }
  // A rank's death does not make what the others have found less true.
  if (attempt_->failure() && attempt_->failure()->weight >= kCertain) return;
  if (!compared_.watch || compared_.attempt != attempt_->number()) {
    compared_.watch.emplace(attempt_->plan().layout.grid.ranks());
    compared_.attempt = attempt_->number();
  }
  const std::optional<CopyVerdict> verdict = compared_.watch->add(std::move(m));
  if (!verdict) return compared_.checkpoints->settle(compared_.watch->equal_step());
  // The state that the ranks began from counts as sound: all loaded the same.
  end_corrupt(to_text(*verdict), *verdict, std::max(start_.step, compared_.watch->equal_step()));
}

/// A rank's state has changed between two updates.
void Run::on_changed_state(const ResultsDiffer& m) {
  if (attempt_->failure() && attempt_->failure()->weight >= kCertain) return;
  // A snapshot taken between the two updates may contain the change.
  end_corrupt("silent corruption in the state after step " + std::to_string(m.step - 1) + ": at rank " +
                  std::to_string(m.rank) + " it has changed before the update of step " +
                  std::to_string(m.step),
              {.ranks = {m.rank}, .details = m.tensors}, std::max(start_.step, m.step - 2));
}

/// Ends the run. Its checkpoints up to `sound_step` are valid. Later ones are withdrawn at once, since this
/// agent may be killed while the ranks end, and once more at the end, in case one was being completed.
void Run::end_corrupt(const std::string& what, const CopyVerdict& verdict, std::int64_t sound_step) {
  notify(io::NoticeKind::corruption, what, verdict.details);
  sinks_.each(&io::MetricsSink::on_corruption, io::CorruptionRecord{.ranks = verdict.ranks});
  compared_.equal_until = sound_step;
  drop_durable_after(sound_step, "the state that ranks hold is corrupt");
  std::string message = what;
  for (const std::string& detail : verdict.details) message += "\n  " + detail;
  fail({base::ErrorKind::device, message, kCertain});
  std::vector<std::int64_t> under_way;
  for (const auto& [step, saving] : saving_)
    if (step > sound_step) under_way.push_back(step);
  for (const std::int64_t step : under_way) drop_save(step);
  cancel_dropped();
  withdraw_checkpoints(sound_step, false);
}

/// Withdraws the checkpoints of this attempt after `sound_step`, whose state was not found equal: a
/// checkpoint holds one of the replicas, and that may be the wrong one. `in_tier`: also their copies in the
/// durable tier, which may take seconds.
void Run::withdraw_checkpoints(std::int64_t sound_step, bool in_tier) {
  if (!membership_.leads()) return;
  withdraw_folders(false, completed_folders_, sound_step);
  if (!durable_ || !in_tier) return;
  await_dropped_copy();
  withdraw_folders(true, copied_folders_, sound_step);
}

void Run::withdraw_folders(bool in_tier, const std::set<std::string>& folders, std::int64_t sound_step) {
  const io::CheckpointStore store = in_tier ? tier_store() : store_;
  try {
    for (const io::StoredCheckpoint& checkpoint : store.list_attempts()) {
      if (checkpoint.step <= sound_step || !folders.contains(checkpoint.name())) continue;
      store.withdraw(checkpoint.name());
      // In the tier it is not of the run's own checkpoints, which `withdrawn` counts. Ranks that have died
      // before they compared a state are no corruption.
      notify(!in_tier                ? io::NoticeKind::withdrawn
             : compared_.equal_until ? io::NoticeKind::corruption
                                     : io::NoticeKind::warning,
             "checkpoint " + checkpoint.path +
                 " does not count any more: the copies that ranks held of its state were not found equal, or "
                 "it may hold what changed in a rank's memory");
    }
  } catch (const base::CheckpointError& error) {
    notify(io::NoticeKind::warning,
           "checkpoints after step " + std::to_string(sound_step) +
               " may hold the corruption and could not be withdrawn, remove them: " + error.what());
  }
}

/// The last step of this attempt whose state is the same on all ranks, as far as the leader knows. Later
/// states were not compared. The state that the ranks began from counts as sound.
std::int64_t Run::trusted_step() const {
  if (job_.supervise.hash_every == 0) return std::numeric_limits<std::int64_t>::max();
  const bool compares = compared_.watch && compared_.attempt == attempt_->number();
  return std::max(start_.step, compares ? compared_.watch->equal_step() : 0);
}

/// The ranks have ended before they compared the states after `step`.
void Run::distrust_checkpoints_after(std::int64_t step) {
  const auto any_later = [step](const std::set<std::string>& folders) {
    return std::any_of(folders.begin(), folders.end(),
                       [step](const std::string& name) { return io::parse_folder(name)->step > step; });
  };
  if (!membership_.leads()) return;
  if (durable_ && job_.supervise.hash_every > 0) {
    if (const auto next = durable_->forget_next_after(step)) store_.pinned().unpin(*next);
    drop_durable_after(step, "its state was not compared");
  }
  const bool in_tier = any_later(copied_folders_);
  if (!in_tier && !any_later(completed_folders_)) return;
  withdraw_checkpoints(step, in_tier);
  if (completed_step_ <= step) return;
  try {
    const std::vector<io::StoredCheckpoint> left = store_.list();
    completed_step_ = left.empty() ? 0 : left.front().step;
    last_good_ = left.empty() ? "none" : left.front().path;
  } catch (const base::CheckpointError& error) {
    log::warn("{}", error.what());
  }
}

/// Waits up to 5 s for a dropped copy to end: if its last file was under way, it may still become complete.
void Run::await_dropped_copy() {
  constexpr double kDropSeconds = 5;
  const double end = base::monotonic_seconds() + kDropSeconds;
  while (!dropped_copy_.empty() && base::monotonic_seconds() < end) {
    pollfd event{copier_->event_fd(), POLLIN, 0};
    ::poll(&event, 1, 100);
    const auto result = copier_->take();
    if (result && result->folder == dropped_copy_ && result->outcome != DurableCopier::Outcome::failed)
      dropped_copy_.clear();
  }
}

}  // namespace trainerd::core::run
