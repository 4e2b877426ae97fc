#include "core/model/param_store.h"

#include <algorithm>
#include <utility>

#include "kernels/rng.h"

namespace trainerd::core {
namespace {

using namespace kernels;

// A parameter begins on a cache line in every dtype.
constexpr std::int64_t kAlignElements = 64;

GemmRole role_of(WeightForm form) { return form == WeightForm::fprop ? GemmRole::fprop : GemmRole::dgrad; }
std::size_t index_of(ParamId id) { return static_cast<std::size_t>(id); }

}  // namespace

Lease::Lease(ParamStore& store, const Weight& weight) : store_(store), weight_(weight) { ++store_.leases_; }
Lease::~Lease() { --store_.leases_; }

ParamStore::ParamStore(std::vector<ParamInfo> infos, const PrecisionRecipe& recipe, const ParamPlacement& placement,
                       Backend& backend, Arena& persistent)
    : infos_(std::move(infos)),
      placement_(placement),
      contributed_(infos_.size(), false),
      prepared_(infos_.size()),
      backend_(backend) {
  std::int64_t total = 0;
  for (const ParamInfo& info : infos_) {
    shapes_.push_back(parallel::local_shape(info.shard, placement_.tp));
    offsets_.push_back(total);
    total += align_up(shapes_.back().numel(), kAlignElements);
  }
  buckets_ = parallel::plan_buckets(total, placement_.bucket_bytes / size_of(recipe.grads), placement_.dp);
  take_state(recipe, persistent);
  take_prepared(persistent);
}

void ParamStore::take_state(const PrecisionRecipe& recipe, Arena& persistent) {
  const bool sharded = placement_.sharded_state && placement_.dp > 1;
  const std::int64_t all = buckets_.elements, kept = sharded ? buckets_.shard_elements() : all;
  const bool same = recipe.params == recipe.master;
  // A master weight of the parameters' own dtype is the parameter: with a sharded state, this rank's part of them.
  if (!same) master_ = persistent.take(recipe.master, {kept}, MemoryTerm::master_weights);
  moment1_ = persistent.take(recipe.moments, {kept}, MemoryTerm::moments);
  moment2_ = persistent.take(recipe.moments, {kept}, MemoryTerm::moments);
  grads_ = persistent.take(recipe.grads, {all}, MemoryTerm::gradients);
  params_ = persistent.take(recipe.params, {all}, same ? MemoryTerm::master_weights : MemoryTerm::parameters);
  grad_parts_ = placement_.dp > 1 ? persistent.take(recipe.grads, {buckets_.shard_elements()}, MemoryTerm::gradients) : grads_;

  const auto add_part = [&](std::int64_t flat, std::int64_t size, std::int64_t kept_at, const Tensor& grads) {
    StatePart part;
    part.flat_begin = flat;
    part.grads = grads;
    part.master = same ? params_.rows(flat, size) : master_.rows(kept_at, size);
    part.moment1 = moment1_.rows(kept_at, size);
    part.moment2 = moment2_.rows(kept_at, size);
    if (!same) part.params = params_.rows(flat, size);
    list_runs(flat, size, parts_.size(), runs_);
    parts_.push_back(std::move(part));
  };
  for (std::size_t b = 0; b < buckets_.buckets.size(); ++b) {
    const parallel::Bucket mine = buckets_.part(b, placement_.dp_rank);
    list_runs(mine.begin, mine.size, b, norm_runs_);
    if (sharded) add_part(mine.begin, mine.size, buckets_.shard_begin(b), grad_parts_.rows(buckets_.shard_begin(b), mine.size));
  }
  if (!sharded) add_part(0, all, 0, grads_);
  for (StateRun& run : runs_) {
    parts_[run.part].ranges.push_back({run.begin, run.count, info(run.id).decay ? 1.0f : 0.0f});
    // Every data-parallel rank holds the whole state: the first saves it.
    if (!sharded) run.owned = run.owned && placement_.dp_rank == 0;
  }
}

void ParamStore::list_runs(std::int64_t flat_begin, std::int64_t count, std::size_t part, std::vector<StateRun>& runs) const {
  // Parameters lie in rising order: from the one that holds the first element to the first that begins behind the last.
  const auto first = std::upper_bound(offsets_.begin(), offsets_.end(), flat_begin) - offsets_.begin();
  for (auto id = static_cast<ParamId>(std::max<std::ptrdiff_t>(0, first - 1)); id < this->count(); ++id) {
    if (offsets_[index_of(id)] >= flat_begin + count) break;
    const std::int64_t begin = std::max(flat_begin, offsets_[index_of(id)]);
    const std::int64_t end = std::min(flat_begin + count, offsets_[index_of(id)] + shapes_[index_of(id)].numel());
    if (begin >= end) continue;
    const std::int64_t offset = offsets_[index_of(id)];
    for (parallel::LocalRun& run :
         parallel::local_runs(info(id).shard, placement_.tp, placement_.tp_rank, begin - offset, end - begin))
      runs.push_back({id, part, offset + run.begin - flat_begin, run.count, std::move(run.box), run.owned && info(id).shard.owner});
  }
}

void ParamStore::take_prepared(Arena& persistent) {
  for (ParamId id = 0; id < count(); ++id) {
    if (!info(id).gemm_weight) continue;
    for (const WeightForm form : {WeightForm::fprop, WeightForm::dgrad}) {
      const std::int64_t bytes = backend_.prepared_bytes(
          {.plain_NC = part(params_, id), .role = role_of(form), .tokens = info(id).gemm_tokens, .out = {}});
      if (bytes > 0)
        prepared_[index_of(id)][form == WeightForm::dgrad].bytes =
            persistent.take(DType::u8, {bytes}, MemoryTerm::prepared_weights);
    }
  }
}

Tensor ParamStore::part(const Tensor& flat, ParamId id) const {
  return flat.rows(offsets_[index_of(id)], shapes_[index_of(id)].numel()).reshaped(shapes_[index_of(id)]);
}

const Tensor& ParamStore::flat_master() const {
  base::check(parts_.size() == 1 && parts_[0].master.numel() == buckets_.elements, "the state of this rank is sharded");
  return parts_[0].master;
}

Tensor ParamStore::norm_elements(const StateRun& run) const {
  // `run.begin` counts from this rank's part of bucket `run.part`.
  const std::int64_t at = placement_.dp > 1 ? buckets_.shard_begin(run.part) : buckets_.buckets[run.part].begin;
  return grad_parts_.rows(at + run.begin, run.count);
}

Lease ParamStore::use(ParamId id, WeightForm form, Stream& stream) {
  if (id == kNoParam) return {*this, {}};
  Weight weight{part(params_, id), {}};
  if (form != WeightForm::plain) {
    Prepared& prepared = prepared_[index_of(id)][form == WeightForm::dgrad];
    if (prepared.bytes.defined() && prepared.version != version_) {
      backend_.prepare_weight(stream, {.plain_NC = weight.plain_NC, .role = role_of(form),
                                       .tokens = info(id).gemm_tokens, .out = prepared.bytes});
      prepared.version = version_;
    }
    weight.prepared = prepared.bytes;
  }
  return {*this, weight};
}

Tensor ParamStore::grad(ParamId id) const { return id == kNoParam ? Tensor{} : part(grads_, id); }

WriteMode ParamStore::grad_mode(ParamId id) {
  base::check(id != kNoParam, "an absent parameter has no gradient");
  const bool first = !contributed_[index_of(id)];
  contributed_[index_of(id)] = true;
  return first ? WriteMode::assign : WriteMode::accumulate;
}

void ParamStore::begin_step() {
  base::check(leases_ == 0, "a lease is held across steps");
  contributed_.assign(contributed_.size(), false);
}

void ParamStore::complete_grads(Stream& stream) {
  for (ParamId id = 0; id < count(); ++id)
    if (!contributed_[index_of(id)]) backend_.fill_zero(stream, grad(id));
}

void ParamStore::initialise(Stream& stream, std::uint64_t seed, parallel::Communicator& dp) {
  for (const Tensor& flat : {grads_, grad_parts_, params_, moment1_, moment2_}) backend_.fill_zero(stream, flat);
  if (master_.defined()) backend_.fill_zero(stream, master_);
  for (const StateRun& run : runs_) {
    const ParamInfo& info = this->info(run.id);
    const bool matrix = run.box.shape.size() == 2;
    const std::int64_t logical_columns = matrix ? info.shard.logical[1] : info.shard.logical[0];
    backend_.init_normal(stream, {.x = parts_[run.part].master.rows(run.begin, run.count), .key = hash_name(info.name, seed),
                                  .stddev = info.init_stddev, .mean = info.init_mean,
                                  .row = matrix ? run.box.begin[0] : 0, .column = matrix ? run.box.begin[1] : run.box.begin[0],
                                  .rows = matrix ? run.box.shape[0] : 1, .columns = run.box.shape.back(),
                                  .logical_rows = matrix ? info.shard.logical[0] : 1, .logical_columns = logical_columns});
  }
  publish(stream, dp);
}

void ParamStore::publish(Stream& stream, parallel::Communicator& dp) {
  for (const StatePart& part : parts_)
    if (part.params.defined()) backend_.cast(stream, {part.master, part.params});
  gather_params(stream, dp);
}

void ParamStore::gather_params(Stream& stream, parallel::Communicator& dp) {
  if (placement_.sharded_state && placement_.dp > 1) {
    for (std::size_t b = 0; b < buckets_.buckets.size(); ++b) {
      const parallel::Bucket whole = buckets_.buckets[b], mine = buckets_.part(b, placement_.dp_rank);
      dp.all_gather(stream, params_.rows(mine.begin, mine.size), params_.rows(whole.begin, whole.size), {.label = "parameters"})
          ->wait(stream);
    }
  }
  changed();
}

}  // namespace trainerd::core
