#include "core/run/worker/saver.h"

#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {

void Saver::start(const Start& start, const job::JobSpec& job, rank::DeviceRank& rank, bool beside) {
  options_ = job.checkpoint;
  last_step_ = job.steps;
  decides_ = start.rank == 0;
  rank_ = &rank;
  for (const std::int64_t segment : start.busy_segments) segments_.set_free(static_cast<int>(segment), false);
  if (start.newest_segment >= 0) segments_.set_newest(static_cast<int>(start.newest_segment));
  snapshot_.emplace(rank.trainer().params());
  base::check(snapshot_->bytes() == rank.plan().snapshot_bytes, "the snapshot is as large as planned");
  if (beside) copy_.emplace(rank.backend(), *snapshot_, rank.memory().scratch());
}

void Saver::begin(std::int64_t step, State state) {
  saved_step_ = state == State::saved ? step : -1;
  saved_at_ = copied_at_ = base::monotonic_seconds();
}

bool Saver::due(std::int64_t step) const {
  return step == last_step_ || due(options_.every, step) || due(options_.memory, step);
}

bool Saver::due(const io::Interval& interval, double since) const {
  return decides_ && interval.seconds > 0 && base::monotonic_seconds() - since >= interval.seconds;
}

train::StepVote Saver::vote(std::int64_t step, bool stop) const {
  const bool checkpoint = step == last_step_ || due(options_.every, step) || due(options_.every, saved_at_);
  return {.stop = stop || (drains_ && checkpoint),
          .checkpoint = checkpoint,
          .memory = due(options_.memory, step) || due(options_.memory, copied_at_),
          .no_room = !options_.memory.never() && !segments_.next()};
}

double Saver::save(SnapshotReady ready) {
  const double start = base::monotonic_seconds();
  finish();
  while (!segments_.next()) await_();
  ready.segment = *segments_.next();
  ready.bytes = snapshot_->bytes();
  const std::span<std::byte> bytes = segments_.bytes(ready.segment);
  if (copy_) copy_->begin(rank_->trainer().stream(), bytes);
  else snapshot_->fill(rank_->backend(), rank_->trainer().stream(), bytes);
  segments_.set_newest(ready.segment);
  copied_at_ = start;
  // With a partner the agent also uses memory snapshots, and releases them when they have been sent.
  if (ready.use == SnapshotUse::checkpoint || options_.partner) segments_.set_free(ready.segment, false);
  if (ready.use == SnapshotUse::checkpoint) {
    saved_step_ = ready.step;
    saved_at_ = start;
  }
  filled_ = ready;
  filled_->seconds = base::monotonic_seconds() - start;
  return filled_->seconds;
}

void Saver::finish() {
  if (!under_way()) return;
  const double start = base::monotonic_seconds();
  copy_->finish();
  filled_->seconds += base::monotonic_seconds() - start;
}

std::optional<SnapshotReady> Saver::take_filled() {
  return under_way() ? std::nullopt : std::exchange(filled_, std::nullopt);
}

}  // namespace trainerd::core::run
