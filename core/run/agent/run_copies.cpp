#include <poll.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/run/agent/run.h"
#include "io/checkpoint/folders.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

// Part of the run (run.h): node 0 compares replicated state, and withdraws checkpoints after a corruption.

namespace trainerd::core::run {

void Run::begin_sound() {
  if (!membership_.leads() || job_.supervise.hash_every == 0) return;
  sound_.emplace(store_.pinned());
  const std::string name = last_good_.substr(last_good_.rfind('/') + 1);
  if (const auto folder = io::parse_folder(name)) sound_->begin(folder->step, name);
}

void Run::on_copies(CopiesHashed m) {
  if (!membership_.leads()) {
    m.attempt = attempt_->number();
    return membership_.send(m);
  }
  if (attempt_->failure()) return;
  if (!copy_watch_ || copies_attempt_ != attempt_->number()) {
    copy_watch_.emplace(attempt_->plan().layout.grid.ranks());
    copies_attempt_ = attempt_->number();
  }
  const std::optional<CopyVerdict> verdict = copy_watch_->add(std::move(m));
  if (!verdict) return sound_->settle(copy_watch_->equal_step());
  // The state that the ranks began from counts as sound: all loaded the same.
  end_corrupt(to_text(*verdict), *verdict, std::max(start_.step, copy_watch_->equal_step()));
}

/// A rank's state has changed between two updates.
void Run::on_changed_state(const ResultsDiffer& m) {
  constexpr int kCertain = 3;
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
  equal_until_ = sound_step;
  if (durable_ && durable_->copying() && durable_->copying()->step > *equal_until_) {
    dropped_copy_ = durable_->copying()->folder;
    drop_durable("the state that ranks hold is corrupt");
  }
  std::string message = what;
  for (const std::string& detail : verdict.details) message += "\n  " + detail;
  fail({base::ErrorKind::device, message, 3});
  std::vector<std::int64_t> under_way;
  for (const auto& [step, saving] : saving_)
    if (step > sound_step) under_way.push_back(step);
  for (const std::int64_t step : under_way) drop_save(step);
  withdraw_checkpoints(false);
}

/// Withdraws the checkpoints of this attempt whose state was not found equal: a checkpoint holds one of the
/// replicas, and that may be the wrong one. `in_tier`: also their copies in the durable tier, which may take
/// seconds.
void Run::withdraw_checkpoints(bool in_tier) {
  if (!equal_until_ || !membership_.leads()) return;
  const auto withdraw = [this](const io::CheckpointStore& store, const std::set<std::string>& folders,
                               io::NoticeKind kind) {
    try {
      for (const io::StoredCheckpoint& checkpoint : store.list_attempts()) {
        if (checkpoint.step <= *equal_until_ || !folders.contains(checkpoint.name())) continue;
        store.withdraw(checkpoint.name());
        notify(kind, "checkpoint " + checkpoint.path +
                         " does not count any more: the copies that ranks held of its state were not found "
                         "equal, or it may hold what changed in a rank's memory");
      }
    } catch (const base::CheckpointError& error) {
      notify(io::NoticeKind::warning,
             "checkpoints after step " + std::to_string(*equal_until_) +
                 " may hold the corruption and could not be withdrawn, remove them: " + error.what());
    }
  };
  withdraw(store_, completed_folders_, io::NoticeKind::withdrawn);
  if (!durable_ || !in_tier) return;
  await_dropped_copy();
  withdraw(tier_store(), copied_folders_, io::NoticeKind::corruption);
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
