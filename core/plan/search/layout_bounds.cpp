#include "core/plan/search/layout_bounds.h"

#include <algorithm>
#include <map>
#include <optional>

#include "core/model/parameters.h"
#include "core/model/recompute.h"
#include "core/plan/cost/cost_model.h"
#include "core/plan/predict/plan.h"
#include "core/plan/search/orthogonal_bound.h"
#include "core/rank/dry_run.h"
#include "core/train/rank_schedule.h"
#include "kernels/tensor/dtype.h"

namespace trainerd::core::plan {
namespace {

using parallel::ActionKind;
using parallel::ScheduleKind;

constexpr int kEmbedding = 1, kHead = 2;

int ends_of(const parallel::ChunkSpan& span) {
  return (span.embedding ? kEmbedding : 0) + (span.head ? kHead : 0);
}

bool makes_weights_apart(const LayoutChoice& c) { return parallel::splits_backward(c.schedule); }

constexpr std::array kSums = {&ChunkCosts::forward,        &ChunkCosts::backward,
                              &ChunkCosts::backward_input, &ChunkCosts::backward_weight,
                              &ChunkCosts::update,         &ChunkCosts::norm};

/// a + k b, except the scratch, which is a maximum.
ChunkCosts plus(ChunkCosts a, double k, const ChunkCosts& b) {
  for (const auto field : kSums) a.*field += k * (b.*field);
  for (std::size_t i = 0; i < train::kSlotClasses; ++i) a.slot_bytes[i] += k * b.slot_bytes[i];
  return a;
}

ChunkCosts least(ChunkCosts a, const ChunkCosts& b) {
  for (const auto field : kSums) a.*field = std::min(a.*field, b.*field);
  for (std::size_t i = 0; i < train::kSlotClasses; ++i)
    a.slot_bytes[i] = std::min(a.slot_bytes[i], b.slot_bytes[i]);
  a.scratch_bytes = std::min(a.scratch_bytes, b.scratch_bytes);
  return a;
}

/// Seconds of a stage's data-parallel collectives.
struct StageSeconds {
  DataParallelSeconds all, first;  ///< for all its chunks, and for the first
};

}  // namespace

/// One pipeline rank.
struct LayoutBounds::Stage {
  double fill = 0, work = 0,
         drain = 0;  ///< seconds before its first computation, of its own computations, after its last one
  double tail = 0;   ///< part of its work that may follow the start of a gradient reduction
  double late = 0;   ///< part of its work that does not delay the drain
  double first_forward = 0;
  double first_backward = 0;  ///< forwards of all chunks, backwards above it
  double update = 0, norm = 0;
  double bytes = 0;                      ///< memory without parameters, gradients and optimizer state
  DataParallelUnits units, first_units;  ///< for all its chunks, and for the first
  std::size_t like = 0;                  ///< index of the first stage with the same units
};

struct LayoutBounds::Chain {
  std::vector<Stage> stages;
  double trip = 0;  ///< seconds of a microbatch through all chunks and back, plus the other microbatches on
                    ///< the last chunk
};

LayoutBounds::LayoutBounds(LayoutParts& parts)
    : parts_(parts),
      data_parallel_(parts),
      timed_(has_rates(parts.topology(), parts.job())),
      device_bytes_(device_bytes(parts.topology(), parts.job().parallel.ranks())) {
  if (timed_ && parts.job().optimizer.kind == job::OptimizerKind::muon)
    for (const MlpKind mlp : {MlpKind::dense, MlpKind::experts})
      if (mlp == MlpKind::dense || parts.job().model.experts.on())
        orthogonal_seconds_[static_cast<std::size_t>(mlp)] =
            orthogonal_seconds(parts.job().model, mlp, parts.topology());
}

/// Runs the small job of probe_job for these ends and layers.
ChunkCosts LayoutBounds::record_probe(const LayoutChoice& c, const Places& places, LayerKind kind, int ends,
                                      std::int64_t layers) const {
  const parallel::Topology& t = parts_.topology();
  LayoutChoice small = c;
  // As few ranks as can share the experts.
  small.dp = with_choice(parts_.job(), c).parallel.dp_multiple(), small.zero = small.zero_group = 0;
  small.schedule = makes_weights_apart(c) ? ScheduleKind::zb_h1 : ScheduleKind::one_f_one_b;
  small.recompute = {kind.recompute, 1};
  // One bucket per unit gives the fewest operators. Smaller buckets read as much for the norm, in more
  // operators.
  small.bucket_bytes = std::int64_t{1} << 50;
  constexpr std::int64_t kMicrobatches = 3;  // a first, a middle and a last one
  const auto& [job, layout, stage, rank] =
      probe_job(parts_.job(), small,
                {.layers = layers, .embedding = (ends & kEmbedding) != 0, .head = (ends & kHead) != 0},
                kind.mlp, kMicrobatches);
  const train::SlotCounts slots = train::count_slots(job, layout, stage);
  // Records with the least memory for attention. `seconds_of` assumes that there is enough.
  kernels::Target least = t.device;
  least.memory_bytes = 0;
  const rank::RankRecord record = rank::record_rank(job, layout, rank, least, slots);

  ChunkCosts costs;
  costs.scratch_bytes = static_cast<double>(record.memory.bytes_of(train::kScratchRegion));
  for (std::size_t i = 0; i < train::kSlotClasses; ++i)
    if (const int count = slots.of_pool.front()[i];
        count > 0 && static_cast<train::SlotClass>(i) != train::SlotClass::offloaded)
      costs.slot_bytes[i] =
          static_cast<double>(record.memory.bytes_of(train::to_string(static_cast<train::SlotClass>(i)))) /
          count;
  if (!timed_) return costs;
  const auto seconds_of = [&](const rank::RecordedSegment& segment, std::optional<kernels::Operator> only) {
    double seconds = 0;
    for (const rank::RecordedEvent& e : segment) {
      const auto i = static_cast<std::size_t>(e.index);
      if (e.kind == rank::RecordedEvent::Kind::op && (!only || record.ops[i].op == *only))
        seconds += op_seconds(unlimited(record.ops[i]), t);
      if (e.kind != rank::RecordedEvent::Kind::issue || only) continue;
      const rank::RecordedCollective& call = record.collectives[i];
      const parallel::Group group = record.groups[static_cast<std::size_t>(call.group)];
      if (!call.background && (group == parallel::Group::tp || group == parallel::Group::ep))
        seconds += collective_seconds(call.kind, call.bytes,
                                      group == parallel::Group::tp ? places.tp : places.ep, t);
    }
    return seconds;
  };
  std::map<ActionKind, double> fastest;  // the first microbatch assigns gradients, the others accumulate
  for (const auto& [key, segment] : record.actions) {
    const double seconds = seconds_of(segment, std::nullopt);
    const auto [at, fresh] = fastest.try_emplace(key.kind, seconds);
    if (!fresh) at->second = std::min(at->second, seconds);
  }
  costs.forward = fastest[ActionKind::forward];
  costs.backward = fastest[ActionKind::backward];
  costs.backward_input = fastest[ActionKind::backward_input];
  costs.backward_weight = fastest[ActionKind::backward_weight];
  costs.update = seconds_of(record.after, kernels::Operator::param_update);
  // With measured curves several small operators may be faster than a large one, because of caches.
  if (!t.measured.known()) costs.norm = seconds_of(record.after, kernels::Operator::block_square_sums);
  return costs;
}

const ChunkCosts& LayoutBounds::probe(const LayoutChoice& c, const Places& places, LayerKind kind, int ends,
                                      std::int64_t layers) {
  const ProbeKey key{c.tp,
                     c.cp,
                     c.ep,
                     c.etp,
                     c.sequence_parallel,
                     c.micro,
                     kind,
                     makes_weights_apart(c),
                     ends,
                     layers,
                     places.tp.per_domain,
                     places.tp.link,
                     places.ep.per_domain,
                     places.ep.link};
  return probes_.get(key, [&] { return record_probe(c, places, kind, ends, layers); });
}

ChunkCosts LayoutBounds::costs_of(const LayoutChoice& c, const Places& places,
                                  const parallel::ChunkSpan& span) {
  const int ends = ends_of(span);
  if (span.layers == 0) return probe(c, places, {}, ends, 0);
  std::map<LayerKind, std::int64_t> kinds;
  for (std::int64_t layer = span.first_layer; layer < span.first_layer + span.layers; ++layer)
    ++kinds[{model::recompute_of(c.recompute, layer),
             job::layer_options(parts_.job().model, layer).experts ? MlpKind::experts : MlpKind::dense}];
  if (kinds.size() == 1 && span.layers <= 2) return probe(c, places, kinds.begin()->first, ends, span.layers);
  const auto layer = [&](LayerKind k) {
    return plus(probe(c, places, k, 0, 3), -1, probe(c, places, k, 0, 2));
  };
  const auto rest = [&](LayerKind k) { return plus(probe(c, places, k, ends, 2), -2, layer(k)); };
  ChunkCosts costs = rest(kinds.begin()->first);
  for (const auto& [kind, layers] : kinds) costs = least(costs, rest(kind));
  for (const auto& [kind, layers] : kinds) costs = plus(costs, static_cast<double>(layers), layer(kind));
  return costs;
}

LayoutBounds::Chain LayoutBounds::chain_of(const LayoutChoice& c) {
  const parallel::Topology& t = parts_.topology();
  const job::JobSpec job = with_choice(parts_.job(), c);
  const GroupPlaces& places = parts_.places(c);
  const std::vector<parallel::ChunkSpan>& chunks = parts_.chunks(c);
  const std::vector<train::SlotCounts>& slots = parts_.slots(c);
  const double m = static_cast<double>(parts_.microbatches(c)),
               flow = static_cast<double>(rank::flow_bytes(job));
  const bool apart = makes_weights_apart(c);
  const parallel::ScheduleShape shape = parallel::schedule_shape(job.parallel, parts_.microbatches(c));
  const double last_group = parallel::microbatch_groups(shape).back();
  const bool folded = parallel::goes_back(shape.kind) && shape.several_chunks(),
             mixed = folded && shape.kind == ScheduleKind::dualpipe_v;
  // If the stages' groups are placed differently, the bound uses the best placement.
  const auto best = [&](parallel::Group group) {
    GroupPlace place = places.at(0, group);
    for (std::int64_t r = 1; r < c.pp; ++r) {
      const GroupPlace& other = places.at(r, group);
      place.per_domain = std::max(place.per_domain, other.per_domain);
      place.link = std::min(place.link, other.link);
    }
    return place;
  };
  // Where computations take turns, they may hide all messages.
  Places waited;
  if (!job.parallel.takes_turns()) waited.tp = best(parallel::Group::tp);
  if (!job.parallel.takes_turns() && c.ep > 1) waited.ep = best(parallel::Group::ep);
  Chain chain;
  double filled = 0, drained = 0, forward_trip = 0;
  std::vector<double> top_backwards;  // by rank: seconds per microbatch on its last chunk
  for (int chunk = 1; timed_ && chunk < shape.chunks(); ++chunk) {
    if (shape.stays_on_rank(chunk - 1)) continue;
    const int from = shape.rank_of(chunk - 1), to = shape.rank_of(chunk);
    const double forward = message_seconds(rank::flow_bytes(job), places.link(from, to), t);
    forward_trip += forward;
    chain.trip += forward + message_seconds(rank::flow_bytes(job), places.link(to, from), t);
  }
  for (std::int64_t r = 0; r < c.pp; ++r) {
    Stage& s = chain.stages.emplace_back();
    if (timed_ && r > 0) {
      filled += message_seconds(rank::flow_bytes(job), places.link(r - 1, r), t);
      drained += message_seconds(rank::flow_bytes(job), places.link(r, r - 1), t);
    }
    s.fill = filled, s.drain = drained;
    double scratch = 0, top_backward = 0, all_backward = 0, top_turned = 0, longest_weight = 0;
    const train::SlotCounts& counts = slots[static_cast<std::size_t>(r)];
    std::vector<std::array<double, train::kSlotClasses>> largest(counts.of_pool.size());  // by pool
    for (std::int64_t v = 0; v < c.virtual_stages; ++v) {
      const int chunk = shape.chunk_of(static_cast<int>(r), static_cast<int>(v));
      const parallel::ChunkSpan& span = chunks[static_cast<std::size_t>(chunk)];
      ChunkCosts k = costs_of(c, waited, span);
      if (mixed) {  // some microbatches' weight gradients are computed apart
        LayoutChoice split = c;
        split.schedule = ScheduleKind::zb_h1;
        const ChunkCosts of_split = costs_of(split, waited, span);
        k.backward_input = std::min(of_split.backward_input, k.backward);
        k.backward_weight = of_split.backward_weight;
        k.backward = std::min(k.backward, of_split.backward_input + of_split.backward_weight);
      }
      const double backward = apart ? k.backward_input + k.backward_weight : k.backward;
      s.work += m * (k.forward + backward);
      const double turned = apart || mixed ? k.backward_input : k.backward;
      chain.trip += (span.head ? m : 1) * (k.forward + turned);
      forward_trip += k.forward;
      s.update += k.update, s.norm += k.norm;
      // A rank with both ends of a tied table updates it once.
      if (folded && span.head && r == 0 && job.model.tie_embeddings)
        s.update -= probe(c, waited, {}, kEmbedding, 0).update;
      top_backward = backward, all_backward += backward;
      top_turned = turned;
      for (std::size_t i = 0; i < train::kSlotClasses; ++i) {
        const int pool = train::shared_by_chunks(static_cast<train::SlotClass>(i))
                             ? 0
                             : counts.pool_of_chunk[static_cast<std::size_t>(v)];
        double& bytes = largest[static_cast<std::size_t>(pool)][i];
        bytes = std::max(bytes, k.slot_bytes[i]);
      }
      scratch = std::max(scratch, k.scratch_bytes);
      // Results that another rank needs alternate between two buffers.
      if (!span.head) s.bytes += flow * (shape.stays_on_rank(chunk) ? 1 : 2);
      if (!span.embedding) s.bytes += flow * (shape.stays_on_rank(chunk - 1) ? 1 : 2);
      longest_weight = std::max(longest_weight, k.backward_weight);
      s.units.add(span, job.model);
      if (v > 0) continue;
      s.first_units.add(span, job.model);
      s.first_forward = k.forward;
      filled += k.forward;
      drained += turned;
      // ZB-H1: rank r computes its weight gradients r microbatches late.
      if (apart) s.late = static_cast<double>(r + 1) * k.backward_weight;
    }
    // ZB-V: rank r is behind with at most 2 r + 1.
    if (folded) s.late = static_cast<double>(2 * r + 1) * longest_weight;
    // DualPipe-V: its last p weight gradients are.
    if (mixed) s.late = static_cast<double>(c.pp) * longest_weight;
    for (std::size_t pool = 0; pool < largest.size(); ++pool)
      for (std::size_t i = 0; i < train::kSlotClasses; ++i)
        s.bytes += largest[pool][i] * counts.of_pool[pool][i];
    // The last backwards: the last microbatch of the top chunk, then the last group of microbatches of each
    // lower chunk.
    s.tail = folded ? s.work : top_backward + last_group * (all_backward - top_backward) + s.late;
    s.bytes += scratch + static_cast<double>(rank::device_overhead(t));
    top_backwards.push_back(top_turned);
    const auto alike = [&](const Stage& other) {
      return other.units == s.units && other.first_units == s.first_units;
    };
    s.like = static_cast<std::size_t>(std::find_if(chain.stages.begin(), chain.stages.end() - 1, alike) -
                                      chain.stages.begin());
  }
  // From the rank of the last chunk to that of the first of the last round.
  double reached = forward_trip;
  for (std::int64_t i = 0; i < c.pp; ++i) {
    const std::int64_t r = folded ? i : c.pp - 1 - i, next = folded ? r + 1 : r - 1;
    chain.stages[static_cast<std::size_t>(r)].first_backward = reached;
    reached += top_backwards[static_cast<std::size_t>(r)];
    if (timed_ && i + 1 < c.pp) reached += message_seconds(rank::flow_bytes(job), places.link(r, next), t);
  }
  return chain;
}

double LayoutBounds::orthogonal_of(const DataParallelUnits& units) const {
  double seconds = 0;
  for (const MlpKind mlp : {MlpKind::dense, MlpKind::experts})
    seconds += static_cast<double>(units.layers_of(mlp)) * orthogonal_seconds_[static_cast<std::size_t>(mlp)];
  return seconds;
}

LayoutBound LayoutBounds::bound(const LayoutChoice& c, const Chain& chain) {
  const parallel::DataParallelLevels& levels = parts_.levels(c);
  const GroupPlaces& places = parts_.places(c);
  const job::JobSpec& job = parts_.job();
  const double m = static_cast<double>(parts_.microbatches(c));
  const std::int64_t parts = levels.replicas ? levels.inner : c.most_gradient_ranks();
  LayoutBound bound;
  // Ranks that share their node's memory can compensate each other, so the smallest one bounds.
  const bool own = parts_.topology().device_memory_bytes > 0;
  std::vector<double> state_bytes(chain.stages.size());
  for (std::size_t r = 0; r < chain.stages.size(); ++r) {
    const Stage& s = chain.stages[r];
    state_bytes[r] = s.like < r ? state_bytes[s.like] : data_parallel_.state_bytes(c, s.units);
    const auto bytes = static_cast<std::int64_t>(s.bytes + state_bytes[r]);
    bound.bytes = own || r == 0 ? std::max(bound.bytes, bytes) : std::min(bound.bytes, bytes);
  }
  // Layouts that are too large are not compared by time.
  if (!timed_ || bound.bytes > device_bytes_) return bound;
  std::vector<StageSeconds> seconds(chain.stages.size());
  double end = chain.trip, stream = 0, least_after = -1;
  for (std::int64_t r = 0; r < c.pp; ++r) {
    const Stage& s = chain.stages[static_cast<std::size_t>(r)];
    const double sharing = c.zero > 0 ? static_cast<double>(parts) : 1;  // for the update
    double work = s.work, stops = 0,
           after = s.update / sharing + s.norm / static_cast<double>(parts) +
                   orthogonal_of(s.units) /
                       (std::max(sharing, static_cast<double>(c.ep)) * static_cast<double>(c.tp));
    if (c.gradient_ranks() > 1) {
      StageSeconds& own_seconds = seconds[static_cast<std::size_t>(r)];
      const auto like = static_cast<std::int64_t>(s.like);
      if (like < r && places.of(like) == places.of(r)) own_seconds = seconds[s.like];
      else
        own_seconds = {data_parallel_.seconds(c, s.units, places.of(r)),
                       data_parallel_.seconds(c, s.first_units, places.of(r))};
      const auto& [all, first] = own_seconds;
      const double reduced = std::max(all.reduce_inner, all.reduce_outer);
      DataParallelSeconds streams;
      // A reduction that is not in the background stops the rank.
      if (job.parallel.overlap_grad_reduce) {
        end = std::max(end, s.fill + work - s.tail + reduced);
        streams.reduce_inner = all.reduce_inner + (m - 1) * all.reduce_inner_again;
        streams.reduce_outer = all.reduce_outer + (m - 1) * all.reduce_outer_again;
        end = std::max(end, s.first_backward + std::max(streams.reduce_inner, streams.reduce_outer));
      } else {
        stops =
            all.reduce_inner + all.reduce_outer + (m - 1) * (all.reduce_inner_again + all.reduce_outer_again);
      }
      if (c.zero == 0) {
        after += all.gather_inner + all.gather_outer;
      } else if (c.zero < 3 && job.parallel.overlap_param_gather) {
        streams.gather_inner = all.gather_inner, streams.gather_outer = all.gather_outer;
        end = std::max(end, std::max(first.gather_inner, first.gather_outer) + work - s.first_forward +
                                s.drain - s.late);
      } else if (c.zero < 3) {
        after += all.gather_inner + all.gather_outer;
      } else if (job.parallel.overlap_param_gather) {
        streams.gather_inner = m * all.gather_inner_walks, streams.gather_outer = m * all.gather_outer_walks;
      } else {
        work += m * (all.gather_inner_walks + all.gather_outer_walks);
      }
      stream = std::max(
          {stream, streams.reduce_inner + streams.gather_inner, streams.reduce_outer + streams.gather_outer});
    }
    end = std::max({end, s.fill + work + stops, s.fill + work - s.late + s.drain});
    least_after = least_after < 0 ? after : std::min(least_after, after);
  }
  bound.seconds = std::max(end + std::max(0.0, least_after), stream);
  return bound;
}

std::vector<LayoutBound> LayoutBounds::of(std::span<const LayoutChoice> choices) {
  std::vector<LayoutBound> bounds;
  bounds.reserve(choices.size());
  const auto shared = [](LayoutChoice c) {
    c.zero = c.zero_group = c.bucket_bytes = 0;
    return c;
  };
  Chain chain;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i == 0 || !(shared(choices[i]) == shared(choices[i - 1]))) chain = chain_of(choices[i]);
    bounds.push_back(bound(choices[i], chain));
  }
  return bounds;
}

}  // namespace trainerd::core::plan
