#include "core/plan/search/data_parallel_bounds.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/plan/cost/cost_model.h"
#include "core/rank/param_record.h"

namespace trainerd::core::plan {
namespace {

using parallel::Group;
using Seconds = DataParallelSeconds;

constexpr std::array kMlpKinds{MlpKind::dense, MlpKind::experts};
constexpr std::array kAllSeconds = {&Seconds::reduce_inner,       &Seconds::reduce_outer,
                                    &Seconds::reduce_inner_again, &Seconds::reduce_outer_again,
                                    &Seconds::gather_inner,       &Seconds::gather_outer,
                                    &Seconds::gather_inner_walks, &Seconds::gather_outer_walks};

void add(Seconds& sum, double times, const Seconds& of) {
  for (const auto field : kAllSeconds) sum.*field += times * (of.*field);
}

const std::optional<GroupPlace>& place_in(const GroupPlaces::ByGroup& places, Group group) {
  return places[static_cast<std::size_t>(group)];
}

}  // namespace

double DataParallelBounds::record_bytes(const LayoutChoice& c, const Unit& unit) {
  const auto [layers, mlp, embedding, head] = unit;
  ProbeJob probe = probe_job(parts_.job(), c, {.layers = layers, .embedding = embedding, .head = head}, mlp,
                             std::min<std::int64_t>(2, parts_.microbatches(c)));
  probe.layout.dp_levels = parts_.levels(c);
  return real(rank::param_bytes(probe.job, probe.layout, probe.rank, parts_.topology().device));
}

double DataParallelBounds::state_bytes(const LayoutChoice& c, const DataParallelUnits& units) {
  const Ranks ranks = ranks_of(c);
  const auto bytes_of = [&](MlpKind mlp, std::int64_t layers) {
    const Unit unit{layers, mlp, units.embedding, units.head};
    return bytes_.get({ranks, unit, parts_.microbatches(c) > 1}, [&] { return record_bytes(c, unit); });
  };
  double rest = std::numeric_limits<double>::infinity(), of_layers = 0;
  for (const MlpKind mlp : kMlpKinds) {
    const std::int64_t layers = units.layers_of(mlp);
    if (layers == units.layers && layers <= 3) return bytes_of(mlp, layers);
    if (layers == 0) continue;
    const double layer = bytes_of(mlp, 3) - bytes_of(mlp, 2);
    rest = std::min(rest, bytes_of(mlp, 2) - 2 * layer);
    of_layers += real(layers) * layer;
  }
  return rest + of_layers;
}

DataParallelSeconds DataParallelBounds::record_seconds(const LayoutChoice& c, const Unit& unit,
                                                       const GroupPlaces::ByGroup& places) {
  const parallel::Topology& t = parts_.topology();
  const auto [layers, mlp, embedding, head] = unit;
  LayoutChoice held = c;
  held.zero = std::min<std::int64_t>(2, c.zero);  // ZeRO 3 gathers per pass what ZeRO 2 gathers per step
  // Their own ranks sum the experts' gradients, beside the others'.
  const bool experts_apart = place_in(places, Group::edp).has_value();
  const auto of = [&](std::int64_t microbatches) {
    ProbeJob probe = probe_job(parts_.job(), held, {.layers = layers, .embedding = embedding, .head = head},
                               mlp, microbatches);
    probe.layout.dp_levels = parts_.levels(c);
    Seconds s;
    for (const rank::ParamCollective& call :
         rank::param_collectives(probe.job, probe.layout, probe.rank, parts_.topology().device)) {
      if (experts_apart && call.group != Group::edp) continue;
      const bool outer = call.group == Group::dp_outer;
      // Replicas gather only reduced gradients, which is part of the reduction.
      const bool gather = call.kind == parallel::OpKind::all_gather && !(outer && parts_.levels(c).replicas);
      double& sum =
          gather ? (outer ? s.gather_outer : s.gather_inner) : (outer ? s.reduce_outer : s.reduce_inner);
      sum += collective_seconds(call.kind, call.bytes, place_in(places, call.group).value(), t);
    }
    return s;
  };
  Seconds s = of(1);
  const Seconds two = of(2);
  s.reduce_inner_again = two.reduce_inner - s.reduce_inner;
  s.reduce_outer_again = two.reduce_outer - s.reduce_outer;
  const double walks = layers > 0 ? 2 : 1;
  s.gather_inner_walks = walks * s.gather_inner, s.gather_outer_walks = walks * s.gather_outer;
  return s;
}

DataParallelSeconds DataParallelBounds::seconds(const LayoutChoice& c, const DataParallelUnits& units,
                                                const GroupPlaces::ByGroup& places) {
  const Ranks ranks = ranks_of(c);
  const auto& one = place_in(places, Group::dp);
  const GroupPlace& inner = one ? *one : place_in(places, Group::dp_inner).value();
  const GroupPlace outer = place_in(places, Group::dp_outer).value_or(GroupPlace{});
  const auto of = [&](const Unit& unit) {
    const Places where{inner.per_domain, inner.link, outer.per_domain, outer.link};
    return seconds_.get({ranks, unit, where}, [&] { return record_seconds(c, unit, places); });
  };
  Seconds sum;
  for (const MlpKind mlp : kMlpKinds)
    if (const std::int64_t layers = units.layers_of(mlp); layers > 0)
      add(sum, real(layers), of({1, mlp, false, false}));
  // A rank with both ends of a tied table holds it once.
  if (units.embedding || units.head) add(sum, 1, of({0, MlpKind::dense, units.embedding, units.head}));
  return sum;
}

}  // namespace trainerd::core::plan
