#include "core/model/param_store.h"

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

ParamStore::ParamStore(std::vector<ParamInfo> infos, const PrecisionRecipe& recipe, Backend& backend, Arena& persistent)
    : infos_(std::move(infos)), contributed_(infos_.size(), false), prepared_(infos_.size()), backend_(backend) {
  std::int64_t total = 0;
  for (const ParamInfo& info : infos_) {
    offsets_.push_back(total);
    total += align_up(info.shard.padded.numel(), kAlignElements);
  }
  master_ = persistent.take(recipe.master, {total}, MemoryTerm::master_weights);
  moment1_ = persistent.take(recipe.moments, {total}, MemoryTerm::moments);
  moment2_ = persistent.take(recipe.moments, {total}, MemoryTerm::moments);
  grads_ = persistent.take(recipe.grads, {total}, MemoryTerm::gradients);
  params_ = recipe.params == recipe.master ? master_ : persistent.take(recipe.params, {total}, MemoryTerm::parameters);
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
  return flat.rows(offsets_[index_of(id)], info(id).shard.padded.numel()).reshaped(info(id).shard.padded);
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

void ParamStore::initialise(Stream& stream, std::uint64_t seed) {
  for (const Tensor& flat : {master_, moment1_, moment2_, grads_}) backend_.fill_zero(stream, flat);
  if (flat_params().defined()) backend_.fill_zero(stream, params_);
  for (ParamId id = 0; id < count(); ++id) {
    const parallel::ShardSpec& shard = info(id).shard;
    const std::int64_t columns = shard.padded[-1], rows = shard.padded.numel() / columns;
    backend_.init_normal(stream, {.x = part(master_, id), .key = hash_name(info(id).name, seed),
                                  .stddev = info(id).init_stddev, .mean = info(id).init_mean, .row = 0, .column = 0,
                                  .rows = rows, .columns = columns, .logical_rows = shard.logical.numel() / shard.logical[-1],
                                  .logical_columns = shard.logical[-1]});
  }
  publish(stream);
}

void ParamStore::publish(Stream& stream) {
  if (flat_params().defined()) backend_.cast(stream, {master_, params_});
  changed();
}

std::vector<UpdateRange> ParamStore::update_ranges(float weight_decay) const {
  std::vector<UpdateRange> ranges;
  for (ParamId id = 0; id < count(); ++id)
    ranges.push_back({offsets_[index_of(id)], info(id).shard.padded.numel(), info(id).decay ? weight_decay : 0.0f});
  return ranges;
}

}  // namespace trainerd::core
