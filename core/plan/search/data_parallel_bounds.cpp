#include "core/plan/search/data_parallel_bounds.h"

#include <algorithm>
#include <array>

#include "core/model/parameters.h"
#include "core/model/tensor_sections.h"
#include "core/plan/cost/cost_model.h"
#include "core/train/optimizer.h"
#include "kernels/memory/memory.h"

namespace trainerd::core {
namespace {

using Seconds = DataParallelSeconds;

constexpr std::array kAllSeconds = {
    &Seconds::reduce_inner,       &Seconds::reduce_outer,       &Seconds::reduce_inner_again,
    &Seconds::reduce_outer_again, &Seconds::gather_inner,       &Seconds::gather_outer,
    &Seconds::gather_inner_walks, &Seconds::gather_outer_walks, &Seconds::gather_gradients};

void add(Seconds& sum, double times, const Seconds& of) {
  for (const auto field : kAllSeconds) sum.*field += times * (of.*field);
}

}  // namespace

const DataParallelBounds::Sections& DataParallelBounds::sections(std::int64_t tp, std::int64_t parts) {
  return sections_.get({tp, parts}, [&] {
    const auto of = [&](const parallel::ChunkSpan& span) {
      const JobSpec& job = parts_.job();
      // By unit, and view.
      std::map<std::pair<std::size_t, States>, std::vector<std::int64_t>> units;
      for (const ParamInfo& info : declare_parameters(job.model, {&span, 1}, 1, false).infos) {
        if (info.vectors) continue;
        std::vector<std::int64_t>& sections = units[{info.unit, optimizer_states(job.optimizer, info)}];
        if (optimizer_cut(job.optimizer, info) == parallel::Granularity::matrix) {
          for (const std::int64_t elements : tensor_sections(info.shard, tp, parts))
            sections.push_back(elements);
          continue;
        }
        if (sections.empty()) sections.push_back(0);
        sections.back() += kernels::align_up(parallel::local_shape(info.shard, tp).numel(), 64);
      }
      UnitSections made;
      for (const auto& [key, sections] : units) {
        for (const std::int64_t elements : sections) made.sections.push_back({made.states.size(), elements});
        made.states.push_back(key.second);
      }
      return made;
    };
    Sections s{of({.first_layer = 0, .layers = 1, .embedding = false, .head = false}),
               of({.first_layer = 0, .layers = 0, .embedding = true, .head = false}),
               of({.first_layer = 0, .layers = 0, .embedding = false, .head = true})};
    return s;
  });
}

double DataParallelBounds::state_bytes(const LayoutChoice& c, double elements, double states,
                                       const DataParallelUnits& units) {
  const parallel::DataParallelLevels& levels = parts_.levels(c);
  const PrecisionRecipe& p = parts_.job().precision;
  const std::int64_t count = levels.replicas ? levels.inner : levels.size;
  const double parts = real(count), shard = elements / parts;
  const double params = real(kernels::size_of(p.params)), grads = real(kernels::size_of(p.grads));
  const double master = p.params == p.master ? 0 : real(kernels::size_of(p.master));
  const bool tied = parts_.job().model.tie_embeddings;
  // What is gathered or reduced lies whole while it is used; in the background, two of it. Each view has its
  // own place for it.
  const Sections& s = sections(c.tp, count);
  std::map<States, std::int64_t> largest_of_view;
  const auto add_largest = [&](bool held, const UnitSections& unit) {
    std::vector<std::int64_t> elements_of(unit.states.size(), 0);
    for (const parallel::Section& section : unit.sections) elements_of[section.unit] += section.elements;
    for (std::size_t u = 0; u < unit.states.size(); ++u) {
      std::int64_t& largest = largest_of_view[unit.states[u]];
      largest = std::max(largest, held ? elements_of[u] : 0);
    }
  };
  add_largest(units.layers > 0, s.layer);
  add_largest(units.embedding && !tied, s.embedding);
  add_largest(units.head && !tied, s.head);
  std::int64_t largest = 0;
  for (const auto& [view, its_largest] : largest_of_view) largest += its_largest;
  const auto ring = [&](bool background) { return real(background ? 2 * largest : largest); };
  double bytes = (master * elements + states) / (c.zero >= 1 ? parts : 1);
  bytes +=
      grads * (c.zero >= 2 && parts > 1 ? ring(parts_.job().parallel.overlap_grad_reduce) + shard : elements);
  return bytes + params * (c.zero >= 3 ? shard + ring(parts_.job().parallel.overlap_param_gather) : elements);
}

DataParallelBounds::UnitSeconds DataParallelBounds::unit_seconds(const LayoutChoice& c,
                                                                 const GroupPlace& inner,
                                                                 const GroupPlace* outer) {
  const parallel::Topology& t = parts_.topology();
  const parallel::DataParallelLevels& levels = parts_.levels(c);
  const PrecisionRecipe& p = parts_.job().precision;
  const bool tied = parts_.job().model.tie_embeddings;
  const std::int64_t grads = kernels::size_of(p.grads), params = kernels::size_of(p.params);
  const std::int64_t bucket = c.bucket_bytes == 0 ? parallel::default_bucket_bytes(c.dp) : c.bucket_bytes;
  const std::int64_t parts = levels.replicas ? levels.inner : levels.size;
  const bool rounded = p.rounds_reduction();
  const std::int64_t pieces = rounded && levels.replicas ? levels.size / levels.inner : 1;
  const auto reduce_scatter = [&](std::int64_t elements, const GroupPlace& place) {
    return rounded ? collective_seconds(parallel::OpKind::all_to_all, elements * kernels::size_of(p.reduce),
                                        place, t)
                   : collective_seconds(parallel::OpKind::reduce_scatter, elements * grads, place, t);
  };
  const auto of = [&](const UnitSections& unit, bool table) {
    Seconds s;
    for (const parallel::Bucket& b :
         parallel::lay_out_buckets(unit.sections, bucket / grads, parts, pieces).buckets) {
      const std::int64_t piece = b.size / levels.inner;
      const double reduce = reduce_scatter(b.size, inner);
      const double gather = collective_seconds(parallel::OpKind::all_gather, b.size * params, inner, t);
      double reduce_outer = 0, gather_outer = 0;
      if (outer != nullptr && levels.replicas) {
        reduce_outer = rounded
                           ? reduce_scatter(piece, *outer) +
                                 collective_seconds(parallel::OpKind::all_gather, piece * grads, *outer, t)
                           : collective_seconds(parallel::OpKind::all_reduce, piece * grads, *outer, t);
      } else if (outer != nullptr) {
        reduce_outer = reduce_scatter(piece, *outer);
        gather_outer = collective_seconds(parallel::OpKind::all_gather, piece * params, *outer, t);
      }
      const double walks = table ? 1 : 2;
      // A tied table's gradient is whole at the end of the step alone.
      const double again = table && tied ? 0 : 1;
      add(s, 1,
          {.reduce_inner = reduce,
           .reduce_outer = reduce_outer,
           .reduce_inner_again = again * reduce,
           .reduce_outer_again = again * reduce_outer,
           .gather_inner = gather,
           .gather_outer = gather_outer,
           .gather_inner_walks = walks * gather,
           .gather_outer_walks = walks * gather_outer,
           .gather_gradients = collective_seconds(parallel::OpKind::all_gather, b.size * grads, inner, t)});
    }
    return s;
  };
  const Sections& s = sections(c.tp, parts * pieces);
  return {of(s.layer, false), of(s.embedding, true), of(s.head, true)};
}

DataParallelSeconds DataParallelBounds::seconds(const LayoutChoice& c, const DataParallelUnits& units,
                                                const GroupPlaces::ByGroup& places) {
  const auto place = [&](parallel::Group group) {
    return places[static_cast<std::size_t>(group)] ? &*places[static_cast<std::size_t>(group)] : nullptr;
  };
  const GroupPlace* one = place(parallel::Group::dp);
  const GroupPlace& inner = one != nullptr ? *one : *place(parallel::Group::dp_inner);
  const GroupPlace* outer = place(parallel::Group::dp_outer);
  const GroupPlace none;
  const GroupPlace& o = outer != nullptr ? *outer : none;
  const UnitSeconds& unit =
      units_.get({c.tp, c.dp, inner.size, c.bucket_bytes, inner.per_domain, inner.link, o.per_domain, o.link},
                 [&] { return unit_seconds(c, inner, outer); });
  Seconds sum;
  add(sum, real(units.layers), unit.layer);
  // A rank with both ends of a tied table holds it once.
  if (units.embedding) add(sum, 1, unit.embedding);
  if (units.head && !(units.embedding && parts_.job().model.tie_embeddings)) add(sum, 1, unit.head);
  return sum;
}

}  // namespace trainerd::core
