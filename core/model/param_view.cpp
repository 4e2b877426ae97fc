#include "core/model/param_view.h"

#include <algorithm>
#include <utility>

#include "core/model/tensor_sections.h"
#include "kernels/tensor/rng.h"

namespace trainerd::core::model {
namespace {

using namespace kernels;
using parallel::GradUnit;

/// The recipe and placement for a view of such parameters: see ViewSpec.
job::PrecisionRecipe recipe_of(job::PrecisionRecipe recipe, const ViewSpec& spec) {
  if (spec.expert_biases) {
    recipe.params = recipe.grads = recipe.master = recipe.reduce = DType::f32;
    return recipe;
  }
  if (spec.trainable) return recipe;
  recipe.master = recipe.params;
  recipe.reduce = DType::f32;
  return recipe;
}
ParamPlacement placement_of(ParamPlacement placement, const ViewSpec& spec) {
  if (spec.expert_biases || (!spec.trainable && placement.zero < 3)) placement.zero = 0;
  if (spec.experts) placement = placement.of_experts();
  return placement;
}

GemmRole role_of(WeightForm form) { return form == WeightForm::fprop ? GemmRole::fprop : GemmRole::dgrad; }

}  // namespace

DType state_dtype(const std::string& state, const job::PrecisionRecipe& recipe) {
  return state == kAverageState ? DType::f32 : recipe.moments;
}

ParamView::ParamView(const std::vector<ParamInfo>& infos, const ViewSpec& spec,
                     const job::PrecisionRecipe& recipe, const ParamPlacement& placement, Backend& backend,
                     const ParamMemory& memory)
    : infos_(infos),
      ids_(spec.ids),
      states_(spec.states),
      cut_(spec.cut),
      trainable_(spec.trainable),
      expert_biases_(spec.expert_biases),
      gemm_(recipe.gemm),
      placement_(placement_of(placement, spec)),
      params_(infos.size()),
      backend_(backend) {
  const job::PrecisionRecipe kept = recipe_of(recipe, spec);
  lay_out(kept);
  take_state(kept, memory);
}

void ParamView::lay_out(const job::PrecisionRecipe& recipe) {
  // Within a unit in model order.
  std::sort(ids_.begin(), ids_.end());
  std::stable_sort(ids_.begin(), ids_.end(),
                   [&](ParamId a, ParamId b) { return info(a).unit < info(b).unit; });

  const std::int64_t parts = placement_.dp.parts(),
                     pieces = recipe.exchanges_gradients() ? placement_.dp.pieces() : 1,
                     alignment = backend_.target().alignment;
  std::vector<parallel::Section> sections;
  std::vector<std::size_t> section_of(infos_.size());
  const bool matrices = cut_ == parallel::Granularity::matrix;
  const auto by_itself = [&](ParamId id) {
    return matrices || info(id).cut_alone || info(id).shard.granularity == parallel::Granularity::block;
  };
  ParamId before = kNoParam;
  for (const ParamId id : ids_) {
    Param& param = of(id);
    const bool new_unit = before == kNoParam || info(before).unit != info(id).unit;
    if (new_unit) unit_grads_.emplace_back();
    param.mine = true;
    param.unit = unit_grads_.size() - 1;
    param.shape = parallel::local_shape(info(id).shard, placement_.tp);
    unit_grads_.back().ids.push_back(id);
    if (new_unit || by_itself(id) || by_itself(before))
      sections.push_back({param.unit, 0, parallel::part_multiple(info(id).shard, placement_.tp)});
    param.offset = sections.back().elements;  // within the section so far
    section_of[static_cast<std::size_t>(id)] = sections.size() - 1;
    if (matrices) {
      sections.pop_back();
      for (const TensorSection& section :
           tensor_sections(info(id).shard, placement_.tp, parts, pieces * alignment))
        sections.push_back({param.unit, section.elements, section.part_multiple});
    } else {
      // Aligned for every dtype.
      sections.back().elements += align_up(param.shape.numel(), alignment);
    }
    before = id;
  }
  buckets_ = parallel::lay_out_buckets(sections, placement_.bucket_bytes / size_of(recipe.grads), parts,
                                       pieces, alignment);
  for (const ParamId id : ids_)
    of(id).offset += buckets_.section_begins[section_of[static_cast<std::size_t>(id)]];
}

void ParamView::make_reducer(const job::PrecisionRecipe& recipe, const ParamMemory& memory) {
  const bool sharded = placement_.shards(2);
  std::vector<GradUnit> units(unit_grads_.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    std::int64_t uses = 0;
    bool shared = false;
    for (const ParamId id : unit_grads_[u].ids) {
      uses += info(id).grad_uses;
      shared = shared || info(id).grad_uses > 1;
      units[u].ring = info(id).vectors ? GradUnit::Ring::vectors : GradUnit::Ring::matrices;
    }
    // A tied embedding is used at both ends of a walk, so its gradient is complete only after the last walk
    // of the step.
    if (shared) units[u].ring = GradUnit::Ring::own;
    unit_grads_[u].uses = uses;
    unit_grads_[u].each_microbatch = sharded && !shared;
    if (unit_grads_[u].each_microbatch) units[u].reductions = placement_.microbatches;
  }
  const parallel::GradDtypes dtypes{recipe.grads, recipe.reduce};
  if (offloads_grads())
    reducer_.emplace(placement_.dp, buckets_, std::move(units), dtypes, backend_, memory.persistent,
                     placement_.host, memory.host);
  else
    reducer_.emplace(placement_.dp, buckets_, std::move(units), sharded, dtypes, backend_, memory.persistent);
}

void ParamView::make_gatherer(const job::PrecisionRecipe& recipe, const ParamMemory& memory) {
  const bool sharded = placement_.shards(3);
  std::vector<parallel::ParamUnit> units(unit_grads_.size());
  std::vector<ParamId> by_id = ids_;
  std::sort(by_id.begin(), by_id.end());
  for (const ParamId id : by_id) {
    parallel::ParamUnit& unit = units[of(id).unit];
    unit.vectors = info(id).vectors;
    if (!info(id).gemm_weight) continue;
    for (const WeightForm form : {WeightForm::fprop, WeightForm::dgrad}) {
      Prepared& prepared = of(id).prepared[form == WeightForm::dgrad];
      prepared.size = backend_.prepared_bytes({.plain_NC = {nullptr, recipe.params, of(id).shape},
                                               .role = role_of(form),
                                               .tokens = info(id).gemm_tokens,
                                               .format = gemm_format(id),
                                               .out = {}});
      prepared.offset = unit.extra_bytes;
      unit.extra_bytes += align_up(prepared.size);
    }
  }
  const MemoryTerm term =
      trainable_ && recipe.params == recipe.master ? MemoryTerm::master_weights : MemoryTerm::parameters;
  if (placement_.offload_params && sharded)
    gatherer_.emplace(placement_.dp, buckets_, std::move(units), recipe.params, term, memory.persistent,
                      backend_, placement_.host, memory.host);
  else
    gatherer_.emplace(placement_.dp, buckets_, std::move(units), sharded, recipe.params, term,
                      memory.persistent, backend_);
  if (sharded) return;
  for (const ParamId id : by_id)
    for (Prepared& prepared : of(id).prepared)
      if (prepared.size > 0)
        prepared.bytes = memory.persistent.take(DType::u8, {prepared.size}, MemoryTerm::prepared_weights);
}

void ParamView::take_state(const job::PrecisionRecipe& recipe, const ParamMemory& memory) {
  Arena& states = memory.states;
  const bool sharded = placement_.shards(1);
  const std::int64_t kept = sharded ? buckets_.shard_elements() : buckets_.elements;
  const bool same = recipe.params == recipe.master;
  // Master weights with the parameters' dtype are the parameters, or this rank's part of them.
  if (!same) master_ = states.take(recipe.master, {kept}, MemoryTerm::master_weights);
  for (const std::string& state : states_)
    flat_states_.push_back(states.take(state_dtype(state, recipe), {kept}, MemoryTerm::moments));
  if (has_grads()) make_reducer(recipe, memory);
  make_gatherer(recipe, memory);
  const bool offloaded_params = placement_.offload_params && placement_.shards(3);

  const auto add_part = [&](std::int64_t flat, std::int64_t kept_at, const Tensor& params,
                            const Tensor& grads) {
    StatePart part;
    part.flat_begin = flat, part.grads = grads;
    const std::int64_t size = params.numel();
    part.master = same ? params : master_.rows(kept_at, size);
    for (const Tensor& state : flat_states_) part.states.push_back(state.rows(kept_at, size));
    if (!same) part.params = params;
    part.host_states = &states != &memory.persistent;
    part.host_master = same ? offloaded_params : part.host_states;
    part.host_params = !same && offloaded_params;
    part.host_grads = offloads_grads();
    list_runs(flat, size, parts_.size(), runs_);
    parts_.push_back(std::move(part));
  };
  for (std::size_t b = 0; b < buckets_.buckets.size(); ++b) {
    const parallel::Bucket mine = buckets_.part(b, placement_.dp.part());
    if (has_grads()) list_runs(mine.begin, mine.size, b, norm_runs_);
    if (sharded)
      add_part(mine.begin, buckets_.shard_begin(b), gatherer_->part(b),
               has_grads() ? reducer_->part(b) : Tensor{});
  }
  if (!sharded) add_part(0, 0, gatherer_->flat(), has_grads() ? reducer_->flat() : Tensor{});
  for (StateRun& run : norm_runs_) run.owned = run.owned && placement_.dp.owner();
  for (StateRun& run : runs_) {
    parts_[run.part].ranges.push_back(update_range(run));
    run.owned = run.owned && saves_state();
  }
}

/// The first of the ranks with this state saves it.
bool ParamView::saves_state() const {
  return placement_.dp.owner() && (placement_.shards(1) || placement_.dp.part() == 0);
}

std::vector<parallel::Communicator*> ParamView::replica_groups() const {
  const parallel::DataParallelGroups& dp = placement_.dp;
  const bool sharded = placement_.shards(1);
  std::vector<parallel::Communicator*> groups;
  if (dp.outer != nullptr && (dp.replicas || !sharded)) groups.push_back(dp.outer);
  if (!sharded) groups.push_back(dp.inner);
  std::erase_if(groups, [](const parallel::Communicator* group) { return group->size() == 1; });
  return groups;
}

UpdateRange ParamView::update_range(const StateRun& run) const {
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

void ParamView::list_runs(std::int64_t flat_begin, std::int64_t count, std::size_t part,
                          std::vector<StateRun>& runs) const {
  // From the parameter with the first element to the last one that begins before the end.
  const auto behind = [&](std::int64_t at, ParamId id) { return at < of(id).offset; };
  auto it = std::upper_bound(ids_.begin(), ids_.end(), flat_begin, behind);
  if (it != ids_.begin()) --it;
  for (; it != ids_.end() && of(*it).offset < flat_begin + count; ++it) {
    const ParamId id = *it;
    const std::int64_t offset = of(id).offset;
    const std::int64_t begin = std::max(flat_begin, offset);
    const std::int64_t end = std::min(flat_begin + count, offset + of(id).shape.numel());
    if (begin >= end) continue;
    for (parallel::LocalRun& run :
         parallel::local_runs(info(id).shard, placement_.tp, placement_.tp_rank, begin - offset, end - begin))
      runs.push_back({id, part, offset + run.begin - flat_begin, run.count, std::move(run.box),
                      run.owned && info(id).shard.owner});
  }
}

void ParamView::add_partial_sum(ParamId id, std::int64_t begin, std::int64_t count,
                                parallel::Communicator& group, const char* label) {
  begin += flat_begin(id);
  std::vector<parallel::PartialSum>& sums = partial_sums_;
  // Adjacent ranges are summed at once, including the padding between them.
  if (!sums.empty() && sums.back().group == &group &&
      begin == align_up(sums.back().begin + sums.back().count, backend_.target().alignment))
    sums.back().count = begin + count - sums.back().begin;
  else sums.push_back({begin, count, &group, label});
}

Tensor ParamView::master(ParamId id) const {
  base::check(parts_.size() == 1 && parts_[0].master.numel() == buckets_.elements,
              "the state of this rank is sharded");
  return parts_[0].master.rows(of(id).offset, of(id).shape.numel()).reshaped(of(id).shape);
}

bool ParamView::offloads_grads() const {
  return has_grads() && placement_.offload_grads && placement_.shards(2);
}

BlockSquareSums ParamView::norm_sums(const StateRun& run, const Tensor& sums) const {
  // `run.begin` is relative to this rank's part of bucket `run.part`.
  return {.x = reducer_->part(run.part).rows(run.begin, run.count), .sums = sums, .host = offloads_grads()};
}

/// True if another rank holds elements of the parameter, which has that many data-parallel copies.
bool ParamView::held_by_others(ParamId id, std::int64_t data_parallel_copies) const {
  const parallel::ShardSpec& shard = info(id).shard;
  if (data_parallel_copies > 1 || info(id).cut_alone) return true;  // a copy of another pipeline stage
  if (placement_.tp == 1) return false;
  if (shard.placement != parallel::TensorPlacement::shard) return true;
  const std::vector<parallel::ShardPiece> pieces =
      parallel::shard_pieces(shard, placement_.tp, placement_.tp_rank);
  return std::any_of(pieces.begin(), pieces.end(),
                     [](const parallel::ShardPiece& piece) { return piece.holders > 1; });
}

void ParamView::each_copy(const ShowCopy& show) const {
  const parallel::DataParallelGroups& dp = placement_.dp;
  const std::int64_t ranks = dp.inner->size() * (dp.outer != nullptr ? dp.outer->size() : 1);
  const bool sharded = placement_.shards(1);
  for (const StateRun& run : runs_) {
    if (!held_by_others(run.id, sharded ? ranks / dp.parts() : ranks)) continue;
    const StatePart& part = parts_[run.part];
    show("", run, part.master.rows(run.begin, run.count), part.host_master);
    for (std::size_t s = 0; s < states_.size(); ++s)
      show("optimizer." + states_[s] + ".", run, part.states[s].rows(run.begin, run.count), part.host_states);
  }
  // Gathered parameters, unless `parts_` covers them.
  if (placement_.shards(3) || (!sharded && !master_.defined())) return;
  std::vector<StateRun> whole;
  list_runs(0, buckets_.elements, 0, whole);
  for (const StateRun& run : whole)
    if (held_by_others(run.id, ranks))
      show("copy of ", run, gatherer_->flat().rows(run.begin, run.count), false);
}

Lease ParamView::use(ParamId id, WeightForm form, Stream& stream) {
  Param& param = of(id);
  const parallel::GatheredUnit unit = gatherer_->use(stream, param.unit);
  const std::int64_t begin = param.offset - buckets_.units[param.unit].begin;
  Weight weight{unit.whole.rows(begin, param.shape.numel()).reshaped(param.shape), {}, gemm_format(id)};
  Prepared& prepared = param.prepared[form == WeightForm::dgrad];
  if (form != WeightForm::plain && prepared.size > 0) {
    weight.prepared = unit.extra.defined() ? unit.extra.rows(prepared.offset, prepared.size) : prepared.bytes;
    const std::int64_t version = unit.extra.defined() ? unit.serial : version_;
    if (prepared.version != version)
      backend_.prepare_weight(stream, {.plain_NC = weight.plain_NC,
                                       .role = role_of(form),
                                       .tokens = info(id).gemm_tokens,
                                       .format = weight.format,
                                       .out = weight.prepared});
    prepared.version = version;
  }
  return {unit.leases, weight};
}

void ParamView::begin_step(Stream& stream, std::int64_t microbatches) {
  base::check(microbatches >= 1 && microbatches <= placement_.microbatches,
              "a step has at most the microbatches that there is memory for");
  grads_stream_ = &stream;
  if (!has_grads()) return;
  for (std::size_t u = 0; u < unit_grads_.size(); ++u) {
    UnitGrads& unit = unit_grads_[u];
    base::check(unit.made == 0, "the gradients of the step before were reduced");
    unit.complete = unit.each_microbatch ? unit.uses : unit.uses * microbatches;
    reducer_->expect(u, unit.each_microbatch ? microbatches : 1);
  }
  reducer_->begin_step();
}

Tensor ParamView::grad(ParamId id) {
  base::check(has_grads(), "a parameter that no gradient changes has none");
  const Param& param = of(id);
  const Tensor unit = reducer_->open(*grads_stream_, param.unit);
  return unit.rows(param.offset - buckets_.units[param.unit].begin, param.shape.numel())
      .reshaped(param.shape);
}

WriteMode ParamView::grad_mode(ParamId id) {
  base::check(has_grads(), "a parameter that no gradient changes has none");
  UnitGrads& unit = unit_grads_[of(id).unit];
  if (++unit.made == unit.complete) complete_units_.push_back(of(id).unit);
  return of(id).made_grads++ == 0 ? WriteMode::assign : WriteMode::accumulate;
}

void ParamView::reduce_complete_grads() {
  for (const std::size_t u : complete_units_) {
    if (observe_grad_)
      for (const ParamId id : unit_grads_[u].ids) observe_grad_(*grads_stream_, grad(id));
    reducer_->reduce(*grads_stream_, u);
    unit_grads_[u].made = 0;
    for (const ParamId id : unit_grads_[u].ids) of(id).made_grads = 0;
  }
  complete_units_.clear();
}

void ParamView::finish_grads() {
  if (has_grads()) reducer_->finish(*grads_stream_, partial_sums_);
  if (has_grads() && !placement_.shards(1)) reducer_->gather(*grads_stream_);
  gatherer_->finish(*grads_stream_);
}

void ParamView::initialise(Stream& stream, std::uint64_t seed) {
  if (has_grads())
    for (const Tensor& flat : {reducer_->flat(), reducer_->parts()})
      if (flat.defined()) backend_.fill_zero(stream, flat);
  for (const Tensor& state : flat_states_) backend_.fill_zero(stream, state);
  if (master_.defined()) backend_.fill_zero(stream, master_);
  for (std::size_t b = 0; b < buckets_.buckets.size(); ++b) backend_.fill_zero(stream, gatherer_->part(b));
  for (const StateRun& run : runs_) {
    const ParamInfo& info = this->info(run.id);
    const bool matrix = run.box.shape.size() == 2;
    const std::int64_t logical_columns = matrix ? info.shard.logical[1] : info.shard.logical[0];
    backend_.init_normal(stream, {.x = parts_[run.part].master.rows(run.begin, run.count),
                                  .draw = info.init_draw,
                                  .key = hash_name(info.name, seed),
                                  .stddev = info.init_stddev,
                                  .mean = info.init_mean,
                                  .row = matrix ? run.box.begin[0] : 0,
                                  .column = matrix ? run.box.begin[1] : run.box.begin[0],
                                  .rows = matrix ? run.box.shape[0] : 1,
                                  .columns = run.box.shape.back(),
                                  .logical_rows = matrix ? info.shard.file_shape()[0] : 1,
                                  .logical_columns = logical_columns});
  }
  begin_average(stream);
}

void ParamView::begin_average(Stream& stream) {
  for (std::size_t s = 0; s < states_.size(); ++s)
    if (states_[s] == kAverageState)
      for (const StatePart& part : parts_) backend_.cast(stream, {part.master, part.states[s]});
}

void ParamView::read_average(Stream& stream, bool average) {
  constexpr std::int64_t kSwapped = std::int64_t{1} << 20;  // elements at a time
  const auto state = std::find(states_.begin(), states_.end(), kAverageState);
  base::check(state != states_.end(), "a view that keeps no average has none to read");
  for (const StatePart& part : parts_) {
    const Tensor& kept = part.states[static_cast<std::size_t>(state - states_.begin())];
    if (part.params.defined()) {
      backend_.cast(stream, {average ? kept : part.master, part.params});
      continue;
    }
    base::check(part.master.dtype == DType::f32, "averages take the place of fp32 weights");
    for (std::int64_t begin = 0; begin < kept.numel(); begin += kSwapped) {
      const std::int64_t count = std::min(kSwapped, kept.numel() - begin);
      const ArenaScope scope(stream.scratch());
      const Tensor aside = stream.scratch().take(DType::f32, {count}, MemoryTerm::workspace);
      backend_.copy(stream, kept.rows(begin, count), aside);
      backend_.copy(stream, part.master.rows(begin, count), kept.rows(begin, count));
      backend_.copy(stream, aside, part.master.rows(begin, count));
    }
  }
  changed(stream);
}

void ParamView::publish(Stream& stream) {
  for (const StatePart& part : parts_)
    if (part.params.defined()) backend_.cast(stream, {part.master, part.params});
  changed(stream);
}

void ParamView::updated(Stream& stream) {
  if (trainable_) changed(stream);
}

void ParamView::changed(Stream& stream) {
  ++version_;
  if (placement_.shards(1)) gatherer_->updated(stream);
}

}  // namespace trainerd::core::model
