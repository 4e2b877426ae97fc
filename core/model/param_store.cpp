#include "core/model/param_store.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/tensor/rng.h"

namespace trainerd::core {
namespace {

using namespace kernels;
using parallel::GradUnit;

// A parameter begins on a cache line in every dtype.
constexpr std::int64_t kAlignElements = 64;

GemmRole role_of(WeightForm form) { return form == WeightForm::fprop ? GemmRole::fprop : GemmRole::dgrad; }
std::size_t index_of(ParamId id) { return static_cast<std::size_t>(id); }

}  // namespace

ParamStore::ParamStore(std::vector<ParamInfo> infos, const PrecisionRecipe& recipe,
                       const ParamPlacement& placement, Backend& backend, Arena& persistent)
    : infos_(std::move(infos)),
      placement_(placement),
      contributions_(infos_.size(), 0),
      prepared_(infos_.size()),
      backend_(backend) {
  lay_out(recipe);
  take_state(recipe, persistent);
}

void ParamStore::lay_out(const PrecisionRecipe& recipe) {
  by_offset_.resize(infos_.size());
  std::iota(by_offset_.begin(), by_offset_.end(), 0);
  std::stable_sort(by_offset_.begin(), by_offset_.end(),
                   [&](ParamId a, ParamId b) { return info(a).unit < info(b).unit; });

  std::vector<parallel::Section> sections;
  std::vector<std::size_t> section_of(infos_.size());
  offsets_.resize(infos_.size());
  bool open = false;
  for (const ParamInfo& info : infos_) shapes_.push_back(parallel::local_shape(info.shard, placement_.tp));
  for (const ParamId id : by_offset_) {
    if (!open || sections.back().unit != info(id).unit || info(id).cut_alone)
      sections.push_back({info(id).unit, 0});
    offsets_[index_of(id)] = sections.back().elements;  // within the section, so far
    section_of[index_of(id)] = sections.size() - 1;
    sections.back().elements += align_up(shapes_[index_of(id)].numel(), kAlignElements);
    open = !info(id).cut_alone;
  }
  buckets_ = parallel::lay_out_buckets(sections, placement_.bucket_bytes / size_of(recipe.grads),
                                       placement_.dp.parts());
  for (ParamId id = 0; id < count(); ++id)
    offsets_[index_of(id)] += buckets_.section_begins[section_of[index_of(id)]];

  unit_grads_.resize(buckets_.units.size());
  for (ParamId id = 0; id < count(); ++id) unit_grads_[info(id).unit].ids.push_back(id);
}

void ParamStore::make_reducer(const PrecisionRecipe& recipe, Arena& persistent) {
  std::vector<GradUnit> units(unit_grads_.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    std::int64_t uses = 0;
    bool shared = false;
    for (const ParamId id : unit_grads_[u].ids) {
      uses += info(id).grad_uses;
      shared = shared || info(id).grad_uses > 1;
      units[u].ring = info(id).vectors ? GradUnit::Ring::vectors : GradUnit::Ring::matrices;
    }
    // The uses of a tied embedding are the two ends of a walk: its gradient is whole until the last one of
    // the step.
    if (shared) units[u].ring = GradUnit::Ring::own;
    if (shards(2) && !shared) units[u].reductions = placement_.microbatches;
    unit_grads_[u].complete = uses * placement_.microbatches / units[u].reductions;
  }
  reducer_.emplace(placement_.dp, buckets_, std::move(units), shards(2), recipe.grads, backend_, persistent);
}

void ParamStore::make_gatherer(const PrecisionRecipe& recipe, Arena& persistent) {
  std::vector<parallel::ParamUnit> units(unit_grads_.size());
  for (ParamId id = 0; id < count(); ++id) {
    parallel::ParamUnit& unit = units[info(id).unit];
    unit.vectors = info(id).vectors;
    if (!info(id).gemm_weight) continue;
    for (const WeightForm form : {WeightForm::fprop, WeightForm::dgrad}) {
      Prepared& prepared = prepared_[index_of(id)][form == WeightForm::dgrad];
      prepared.size = backend_.prepared_bytes({.plain_NC = {nullptr, recipe.params, shapes_[index_of(id)]},
                                               .role = role_of(form),
                                               .tokens = info(id).gemm_tokens,
                                               .out = {}});
      prepared.offset = unit.extra_bytes;
      unit.extra_bytes += align_up(prepared.size);
    }
  }
  const MemoryTerm term =
      recipe.params == recipe.master ? MemoryTerm::master_weights : MemoryTerm::parameters;
  gatherer_.emplace(placement_.dp, buckets_, std::move(units), shards(3), recipe.params, term, persistent);
  if (shards(3)) return;
  for (auto& forms : prepared_)
    for (Prepared& prepared : forms)
      if (prepared.size > 0)
        prepared.bytes = persistent.take(DType::u8, {prepared.size}, MemoryTerm::prepared_weights);
}

void ParamStore::take_state(const PrecisionRecipe& recipe, Arena& persistent) {
  const bool sharded = shards(1);
  const std::int64_t all = buckets_.elements, kept = sharded ? buckets_.shard_elements() : all;
  const bool same = recipe.params == recipe.master;
  // A master weight of the parameters' own dtype is the parameter: with a sharded state, this rank's part of
  // them.
  if (!same) master_ = persistent.take(recipe.master, {kept}, MemoryTerm::master_weights);
  moment1_ = persistent.take(recipe.moments, {kept}, MemoryTerm::moments);
  moment2_ = persistent.take(recipe.moments, {kept}, MemoryTerm::moments);
  make_reducer(recipe, persistent);
  make_gatherer(recipe, persistent);

  const auto add_part = [&](std::int64_t flat, std::int64_t kept_at, const Tensor& params,
                            const Tensor& grads) {
    StatePart part;
    const std::int64_t size = params.numel();
    part.flat_begin = flat;
    part.grads = grads;
    part.master = same ? params : master_.rows(kept_at, size);
    part.moment1 = moment1_.rows(kept_at, size);
    part.moment2 = moment2_.rows(kept_at, size);
    if (!same) part.params = params;
    list_runs(flat, size, parts_.size(), runs_);
    parts_.push_back(std::move(part));
  };
  for (std::size_t b = 0; b < buckets_.buckets.size(); ++b) {
    const parallel::Bucket mine = buckets_.part(b, placement_.dp.part());
    list_runs(mine.begin, mine.size, b, norm_runs_);
    if (sharded) add_part(mine.begin, buckets_.shard_begin(b), gatherer_->part(b), reducer_->part(b));
  }
  if (!sharded) add_part(0, 0, gatherer_->flat(), reducer_->flat());
  for (StateRun& run : norm_runs_) run.owned = run.owned && placement_.dp.owner();
  for (StateRun& run : runs_) {
    parts_[run.part].ranges.push_back(update_range(run));
    // Of the data-parallel ranks that hold the same state, the first saves it.
    run.owned = run.owned && placement_.dp.owner() && (sharded || placement_.dp.part() == 0);
  }
}

UpdateRange ParamStore::update_range(const StateRun& run) const {
  const ParamInfo& info = this->info(run.id);
  UpdateRange range{.begin = run.begin,
                    .count = run.count,
                    .weight_decay = info.decay ? 1.0f : 0.0f,
                    .key = hash_name(info.name, 0),
                    .first = run.box.begin.back(),
                    .columns = run.count,
                    .stride = run.count};
  if (run.box.shape.size() < 2) return range;
  range.first += run.box.begin[0] * info.shard.logical[1];
  if (run.box.shape[0] > 1) range.columns = run.box.shape[1], range.stride = info.shard.logical[1];
  return range;
}

void ParamStore::list_runs(std::int64_t flat_begin, std::int64_t count, std::size_t part,
                           std::vector<StateRun>& runs) const {
  // From the parameter that holds the first element to the first that begins behind the last.
  const auto behind = [&](std::int64_t at, ParamId id) { return at < offsets_[index_of(id)]; };
  auto it = std::upper_bound(by_offset_.begin(), by_offset_.end(), flat_begin, behind);
  if (it != by_offset_.begin()) --it;
  for (; it != by_offset_.end() && offsets_[index_of(*it)] < flat_begin + count; ++it) {
    const ParamId id = *it;
    const std::int64_t offset = offsets_[index_of(id)];
    const std::int64_t begin = std::max(flat_begin, offset);
    const std::int64_t end = std::min(flat_begin + count, offset + shapes_[index_of(id)].numel());
    if (begin >= end) continue;
    for (parallel::LocalRun& run :
         parallel::local_runs(info(id).shard, placement_.tp, placement_.tp_rank, begin - offset, end - begin))
      runs.push_back({id, part, offset + run.begin - flat_begin, run.count, std::move(run.box),
                      run.owned && info(id).shard.owner});
  }
}

Tensor ParamStore::part(const Tensor& flat, ParamId id) const {
  return flat.rows(offsets_[index_of(id)], shapes_[index_of(id)].numel()).reshaped(shapes_[index_of(id)]);
}

const Tensor& ParamStore::flat_master() const {
  base::check(parts_.size() == 1 && parts_[0].master.numel() == buckets_.elements,
              "the state of this rank is sharded");
  return parts_[0].master;
}

Tensor ParamStore::norm_elements(const StateRun& run) const {
  // `run.begin` counts from this rank's part of bucket `run.part`.
  return reducer_->part(run.part).rows(run.begin, run.count);
}

Lease ParamStore::use(ParamId id, WeightForm form, Stream& stream) {
  if (id == kNoParam) return {nullptr, {}};
  const parallel::GatheredUnit unit = gatherer_->use(stream, info(id).unit);
  const std::int64_t begin = offsets_[index_of(id)] - buckets_.units[info(id).unit].begin;
  Weight weight{unit.whole.rows(begin, shapes_[index_of(id)].numel()).reshaped(shapes_[index_of(id)]), {}};
  Prepared& prepared = prepared_[index_of(id)][form == WeightForm::dgrad];
  if (form != WeightForm::plain && prepared.size > 0) {
    weight.prepared = unit.extra.defined() ? unit.extra.rows(prepared.offset, prepared.size) : prepared.bytes;
    const std::int64_t version = unit.extra.defined() ? unit.serial : version_;
    if (prepared.version != version)
      backend_.prepare_weight(stream, {.plain_NC = weight.plain_NC,
                                       .role = role_of(form),
                                       .tokens = info(id).gemm_tokens,
                                       .out = weight.prepared});
    prepared.version = version;
  }
  return {unit.leases, weight};
}

void ParamStore::begin_step(Stream& stream) {
  grads_stream_ = &stream;
  reducer_->begin_step();
  for (const UnitGrads& unit : unit_grads_)
    base::check(unit.made == 0, "the gradients of the step before were reduced");
}

Tensor ParamStore::grad(ParamId id) {
  if (id == kNoParam) return {};
  const Tensor unit = reducer_->open(*grads_stream_, info(id).unit);
  return unit
      .rows(offsets_[index_of(id)] - buckets_.units[info(id).unit].begin, shapes_[index_of(id)].numel())
      .reshaped(shapes_[index_of(id)]);
}

WriteMode ParamStore::grad_mode(ParamId id) {
  base::check(id != kNoParam, "an absent parameter has no gradient");
  UnitGrads& unit = unit_grads_[info(id).unit];
  if (++unit.made == unit.complete) complete_units_.push_back(info(id).unit);
  return contributions_[index_of(id)]++ == 0 ? WriteMode::assign : WriteMode::accumulate;
}

void ParamStore::reduce_complete_grads() {
  for (const std::size_t u : complete_units_) {
    reducer_->reduce(*grads_stream_, u);
    unit_grads_[u].made = 0;
    for (const ParamId id : unit_grads_[u].ids) contributions_[index_of(id)] = 0;
  }
  complete_units_.clear();
}

void ParamStore::finish_grads(std::span<const parallel::PartialSum> partial_sums) {
  reducer_->finish(*grads_stream_, partial_sums);
  if (!shards(1)) reducer_->gather(*grads_stream_);
  gatherer_->finish(*grads_stream_);
}

void ParamStore::initialise(Stream& stream, std::uint64_t seed) {
  for (const Tensor& flat : {reducer_->flat(), reducer_->parts(), moment1_, moment2_, master_})
    if (flat.defined()) backend_.fill_zero(stream, flat);
  for (std::size_t b = 0; b < buckets_.buckets.size(); ++b) backend_.fill_zero(stream, gatherer_->part(b));
  for (const StateRun& run : runs_) {
    const ParamInfo& info = this->info(run.id);
    const bool matrix = run.box.shape.size() == 2;
    const std::int64_t logical_columns = matrix ? info.shard.logical[1] : info.shard.logical[0];
    backend_.init_normal(stream, {.x = parts_[run.part].master.rows(run.begin, run.count),
                                  .key = hash_name(info.name, seed),
                                  .stddev = info.init_stddev,
                                  .mean = info.init_mean,
                                  .row = matrix ? run.box.begin[0] : 0,
                                  .column = matrix ? run.box.begin[1] : run.box.begin[0],
                                  .rows = matrix ? run.box.shape[0] : 1,
                                  .columns = run.box.shape.back(),
                                  .logical_rows = matrix ? info.shard.logical[0] : 1,
                                  .logical_columns = logical_columns});
  }
  publish(stream);
}

void ParamStore::publish(Stream& stream) {
  for (const StatePart& part : parts_)
    if (part.params.defined()) backend_.cast(stream, {part.master, part.params});
  updated(stream);
}

void ParamStore::updated(Stream& stream) {
  ++version_;
  if (shards(1)) gatherer_->updated(stream);
}

}  // namespace trainerd::core
