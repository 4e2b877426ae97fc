#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/run/wire/messages.h"
#include "core/train/trainer.h"

namespace trainerd::core::run {

/// The report of a rank whose state changed after the update before `step`.
inline ResultsDiffer changed_state(std::int64_t rank, std::int64_t step, std::vector<std::string> tensors) {
  constexpr std::size_t kShownTensors = 8;
  if (tensors.size() > kShownTensors) tensors.resize(kShownTensors);
  return {.rank = rank,
          .step = step,
          .tensors = std::move(tensors),
          .ranks = {rank},
          .found = ResultsDiffer::Found::changed_state};
}

/// Decides when a rank hashes its replicated state, and makes the report: every `hash_every` steps, in the
/// step after each snapshot, and at the end of the run. A rank without replicated state reports an empty list
/// at the same steps.
class CopyCheck {
 public:
  CopyCheck(const job::JobSpec& job, std::int64_t rank, train::Trainer& trainer)
      : every_(job.supervise.hash_every), rank_(rank), trainer_(trainer) {}

  /// Call it before the step is launched.
  void begin(std::int64_t step) {
    const bool due = every_ > 0 && (step % every_ == 0 || step - 1 == snapshot_);
    if (due) due_.push_back(step);
    trainer_.hash_copies(due);
  }
  void add_snapshot(std::int64_t step) { snapshot_ = step; }
  /// The report about the state before `step`, from that step's hashes; none if it was not hashed.
  std::optional<CopiesHashed> take(std::int64_t step, std::vector<std::uint64_t> hashes) {
    if (due_.empty() || due_.front() != step) return std::nullopt;
    due_.pop_front();
    return message(step - 1, std::move(hashes));
  }
  /// Hashes the final state, since no step follows.
  std::optional<CopiesHashed> last(std::int64_t step) {
    if (every_ == 0) return std::nullopt;
    return message(step,
                   trainer_.copies() != nullptr ? trainer_.hash_copies_now() : std::vector<std::uint64_t>{});
  }

 private:
  CopiesHashed message(std::int64_t after, std::vector<std::uint64_t> hashes) {
    CopiesHashed m{.rank = rank_, .step = after, .names = {}, .hashes = std::move(hashes)};
    if (!std::exchange(named_, true) && trainer_.copies() != nullptr) m.names = trainer_.copies()->names();
    return m;
  }

  std::int64_t every_, rank_;
  train::Trainer& trainer_;
  std::deque<std::int64_t> due_;
  std::int64_t snapshot_ = -1;
  bool named_ = false;
};

}  // namespace trainerd::core::run
