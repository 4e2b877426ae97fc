#include "core/rank/record.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/rank/dry_run.h"
#include "core/train/clocked_groups.h"
#include "core/train/snapshot.h"
#include "core/train/trainer.h"
#include "kernels/base/error.h"
#include "kernels/meta/meta_backend.h"
#include "parallel/group/world.h"
#include "parallel/schedule/order.h"

namespace trainerd::core::rank {
namespace {

/// The job with the fewest microbatches that show the behaviour of many: a first, a middle and a last one,
/// and enough to fill the pipeline in whole turns.
job::JobSpec shortened(const job::JobSpec& job) {
  constexpr std::int64_t kTurns = 3;
  const std::int64_t pp = job.parallel.pp;
  std::int64_t enough = std::max(pp, (kTurns + pp - 1) / pp * pp);
  // With fewer microbatches the warm-up is longer and uses other slots.
  if (job.parallel.schedule == parallel::ScheduleKind::zb_h1) enough = std::max(enough, pp + 1);
  if (parallel::goes_back(job.parallel.schedule)) enough = std::max(enough, 2 * pp);
  // So many that a forward in the middle takes turns with each kind of backward.
  if (job.parallel.schedule == parallel::ScheduleKind::dualpipe_v) enough = std::max(enough, 3 * pp + 1);
  return job.with_batch(std::min(job.microbatches(), enough) * job.batch.micro * job.parallel.dp);
}

/// Collects the events of the stream and cuts them at the actions.
class Recorder {
 public:
  explicit Recorder(const parallel::ScheduleShape& shape) : shape_(shape) {}

  void start() { into_ = &record_.before; }
  void next(std::span<const parallel::Action> actions) {
    if (into_ == nullptr) return;
    if (actions.empty()) {
      into_ = &record_.after;
    } else if (parallel::is_send(actions.front().kind) || parallel::is_receive(actions.front().kind)) {
      into_ = &unused_;
    } else {
      // The last middle microbatch is kept, because the pipeline is full by then.
      into_ = &record_.actions[key_of(actions, shape_)];
      into_->clear();
    }
  }
  void op(const kernels::MetaCall& call) {
    if (into_ == nullptr || call.stream != train::kComputeStream) return;
    const auto key =
        std::make_tuple(call.op, call.what, call.cost.flops, call.cost.bytes, call.cost.host_bytes);
    const auto [at, fresh] = ops_.try_emplace(key, static_cast<std::int32_t>(record_.ops.size()));
    if (fresh) record_.ops.push_back({call.op, call.what, call.cost});
    into_->push_back({.index = at->second});
  }
  void collective(parallel::Group group, const parallel::MetaCollective& c) {
    if (c.group_size == 1 && !parallel::is_host_link(group)) return;
    const int g = group_index(group);
    const bool beside = std::string_view(c.stream) != train::kComputeStream;
    // Another stream waits beside the compute stream, which waits itself later.
    if (beside && c.moment == parallel::CommMoment::wait) {
      // A copy from the host that comes between is over sooner than a sum over ranks.
      LastWait& last = last_wait_[c.stream];
      if (last.fresh && parallel::is_host_link(group) &&
          !parallel::is_host_link(record_.groups[static_cast<std::size_t>(last.group)]))
        return;
      last = {g, c.sequence, true};
      return;
    }
    RecordedEvent issue{.kind = RecordedEvent::Kind::issue};
    if (const auto last = last_wait_.find(c.stream); beside && last != last_wait_.end()) {
      last->second.fresh = false;
      if (const int other = last->second.group; other != g)
        issue.after = other, issue.behind = issued_[static_cast<std::size_t>(other)] - last->second.sequence;
    }
    if (c.moment == parallel::CommMoment::issue) issued_[static_cast<std::size_t>(g)] = c.sequence;
    // Transfers are in the schedule's lists, with their peers.
    if (into_ == nullptr || c.kind == parallel::OpKind::exchange) return;
    if (c.moment == parallel::CommMoment::wait) {
      into_->push_back({.kind = RecordedEvent::Kind::wait,
                        .index = g,
                        .behind = issued_[static_cast<std::size_t>(g)] - c.sequence});
      return;
    }
    const RecordedCollective call{g, c.kind, c.label, c.bytes, c.progress == parallel::Progress::background};
    const auto [at, fresh] =
        collectives_.try_emplace(call, static_cast<std::int32_t>(record_.collectives.size()));
    if (fresh) record_.collectives.push_back(call);
    issue.index = at->second;
    into_->push_back(issue);
  }
  RankRecord take() { return std::move(record_); }
  void stop() { into_ = nullptr; }

 private:
  int group_index(parallel::Group group) {
    const auto at = std::find(record_.groups.begin(), record_.groups.end(), group);
    if (at != record_.groups.end()) return static_cast<int>(at - record_.groups.begin());
    record_.groups.push_back(group);
    issued_.push_back(0);
    return static_cast<int>(record_.groups.size()) - 1;
  }

  RankRecord record_;
  RecordedSegment* into_ = nullptr;
  RecordedSegment unused_;
  std::vector<std::int64_t> issued_;  // sequence of the last issued collective, by group
  struct LastWait {
    int group = 0;
    std::int64_t sequence = 0;
    bool fresh = false;  ///< nothing was issued on the stream since
  };
  std::map<std::string, LastWait, std::less<>> last_wait_;  // by stream
  std::map<std::tuple<kernels::Operator, kernels::OpClass, double, double, double>, std::int32_t> ops_;
  std::map<RecordedCollective, std::int32_t> collectives_;
  parallel::ScheduleShape shape_;
};

/// Makes a step run twice and compares the hashes.
class JudgeOnce final : public train::Judge {
 public:
  explicit JudgeOnce(train::Trainer& trainer) : trainer_(trainer) {}
  bool judges(std::int64_t) const override { return true; }
  train::StepVerdict judge(const train::StepOutcome&) override {
    trainer_.hash_gradients();
    trainer_.most_of_ranks({0.0f});
    return std::exchange(again_, false) ? train::StepVerdict::again : train::StepVerdict::update;
  }

 private:
  train::Trainer& trainer_;
  bool again_ = true;
};

RankRecord record_once(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank,
                       const kernels::Target& target, const train::SlotCounts& slots,
                       std::span<const train::SlotCounts> alike) {
  const job::JobSpec few = shortened(job);
  Recorder recorder(parallel::schedule_shape(layout.options, few.microbatches()));
  kernels::MetaBackend backend(target, [&](const kernels::MetaCall& call) { recorder.op(call); });
  parallel::MetaWorld world(
      rank, [&](parallel::Group group, const parallel::MetaCollective& c) { recorder.collective(group, c); });
  const train::RankGroups groups(layout, rank, job.model, world, backend);
  train::StepMemory memory(slots, target.alignment);
  train::Trainer trainer(few, layout, backend, groups, memory);
  trainer.observe_actions([&](std::span<const parallel::Action> actions) { recorder.next(actions); });
  trainer.initialise();
  train::SampleBatches batches(trainer.batch_shape(), nullptr);  // the meta world reads no samples
  // With sharded parameters the first pass learns the order of their use. Otherwise all steps are equal.
  if (layout.options.zero == 3) trainer.step(1, batches, {});
  recorder.start();
  trainer.step(2, batches, {});
  recorder.stop();
  if (trainer.copies() != nullptr) {  // records its memory
    trainer.hash_copies(true);
    trainer.step(3, batches, {});
    trainer.hash_copies(false);
  }
  JudgeOnce once(trainer);
  if (trainer.gradients() != nullptr) {  // records its memory
    trainer.judge_by(once);
    trainer.step(4, batches, {});
  }
  // An evaluation, or the reference's pass over pairs, may need more memory than training.
  if (job.evaluate.average) trainer.read(model::ParamStore::Read::averages);
  if (job.evaluate.every > 0 || job.loss.dpo.on()) trainer.evaluate(batches);
  RankRecord record = recorder.take();
  record.memory = memory.budget();
  for (const train::SlotCounts& counts : alike) record.memory_alike.push_back(memory.budget_with(counts));
  record.attention_limit_bytes = target.attention_limit_bytes;
  const train::Snapshot snapshot(trainer.params());
  record.snapshot_bytes = snapshot.bytes();
  record.state = snapshot.slices();
  record.state.insert(record.state.end(), snapshot.borrowed().begin(), snapshot.borrowed().end());
  return record;
}

}  // namespace

MicrobatchRole role_of(std::int64_t microbatch, std::int64_t microbatches) {
  if (microbatch + 1 == microbatches) return MicrobatchRole::last;
  return microbatch == 0 ? MicrobatchRole::first : MicrobatchRole::middle;
}

ActionKey key_of(std::span<const parallel::Action> actions, const parallel::ScheduleShape& shape) {
  const auto role = [&](const parallel::Action& a) { return role_of(a.microbatch, shape.microbatches); };
  const parallel::Action& a = actions.front();
  ActionKey key{shape.place_of(a.chunk), a.kind, role(a)};
  if (actions.size() > 1) key.other = {shape.place_of(actions[1].chunk), role(actions[1])};
  return key;
}

std::vector<ActionCounts> action_counts(const parallel::ScheduleShape& shape) {
  std::vector<ActionCounts> of_rank;
  for (const std::vector<parallel::Action>& list : parallel::compute_orders(shape)) {
    ActionCounts& counts = of_rank.emplace_back();
    for (std::size_t i = 0; i < list.size();) {
      const std::span<const parallel::Action> rest = std::span(list).subspan(i),
                                              together = rest.first(parallel::group_size(rest));
      ++counts[key_of(together, shape)];
      i += together.size();
    }
    for (int chunk = 0; chunk < shape.virtual_stages; ++chunk)
      counts[{chunk, parallel::ActionKind::reduce_grads, MicrobatchRole::last}] = 1;
  }
  return of_rank;
}

double RankRecord::flops(const ActionCounts& counts) const {
  const auto of = [&](const RecordedSegment& segment) {
    double sum = 0;
    for (const RecordedEvent& event : segment)
      if (event.kind == RecordedEvent::Kind::op) sum += ops[static_cast<std::size_t>(event.index)].cost.flops;
    return sum;
  };
  double sum = of(before) + of(after);
  for (const auto& [key, count] : counts) sum += static_cast<double>(count) * of(actions.at(key));
  return sum;
}

RankRecord record_rank(const job::JobSpec& job, const parallel::Layout& layout, std::int64_t rank,
                       const kernels::Target& target, const train::SlotCounts& slots,
                       std::span<const train::SlotCounts> alike) {
  RankRecord record = record_once(job, layout, rank, target, slots, alike);
  if (!attention_is_limited(record)) return record;
  std::int64_t most = record.memory.total_bytes();
  for (const kernels::MemoryBudget& memory : record.memory_alike) most = std::max(most, memory.total_bytes());
  kernels::Target roomier = target;
  roomier.attention_limit_bytes = attention_limit(target, most + overhead_bytes(job, layout, rank));
  if (roomier.attention_limit_bytes == target.attention_limit_bytes) return record;
  return record_once(job, layout, rank, roomier, slots, alike);
}

std::int64_t attention_limit(const kernels::Target& target, std::int64_t used_bytes) {
  const std::int64_t least = target.attention_limit_bytes,
                     part = (target.memory_bytes - used_bytes) / kAttentionShareOfLeft;
  std::int64_t limit = least;
  while (target.memory_bytes > 0 && 2 * limit - least <= part) limit *= 2;
  return limit;
}

bool attention_is_limited(const RankRecord& record) {
  return std::ranges::any_of(record.ops, [](const RecordedOp& op) { return op.what.limited; });
}

std::int64_t flow_bytes(const job::JobSpec& job) {
  const std::int64_t whole =
      job.microbatch_tokens() * job.model.hidden * kernels::size_of(job.precision.compute);
  return job.parallel.sequence_parallel ? whole / job.parallel.tp : whole;
}

}  // namespace trainerd::core::rank
