#include "core/model/param_store.h"

#include <algorithm>
#include <utility>

namespace trainerd::core::model {

using namespace kernels;

ParamStore::ParamStore(std::vector<ParamInfo> infos, const std::vector<ViewSpec>& views,
                       const job::PrecisionRecipe& recipe, const ParamPlacement& placement, Backend& backend,
                       const ParamMemory& memory)
    : infos_(std::move(infos)), tp_rank_(placement.tp_rank), view_of_(infos_.size(), nullptr) {
  if (recipe.loss_scale.dynamic)
    loss_scale_ = memory.persistent.take(DType::f32, {LossScaleState::kValues}, MemoryTerm::control);
  for (const ViewSpec& spec : views) {
    views_.push_back(std::make_unique<ParamView>(infos_, spec, recipe, placement, backend, memory));
    for (const ParamId id : spec.ids) {
      base::check(std::exchange(view_of_.at(static_cast<std::size_t>(id)), views_.back().get()) == nullptr,
                  "a parameter is in one view");
    }
  }
  base::check(std::find(view_of_.begin(), view_of_.end(), nullptr) == view_of_.end(),
              "every parameter is in a view");
}

Lease ParamStore::use(ParamId id, WeightForm form, Stream& stream) {
  if (id == kNoParam) return {nullptr, {}};
  return view_of(id).use(id, form, stream);
}

void ParamStore::begin_pass(const parallel::ParamGatherer::PassKind& kind) {
  for (const auto& view : views_) view->begin_pass(kind);
}

void ParamStore::begin_walk() {
  for (const auto& view : views_) view->begin_walk();
}

void ParamStore::begin_step(Stream& stream, std::int64_t microbatches) {
  for (const auto& view : views_) view->begin_step(stream, microbatches);
}

Tensor ParamStore::grad(ParamId id) { return id == kNoParam ? Tensor{} : view_of(id).grad(id); }

WriteMode ParamStore::grad_mode(ParamId id) {
  base::check(id != kNoParam, "an absent parameter has no gradient");
  return view_of(id).grad_mode(id);
}

void ParamStore::observe_grads(const ParamView::ObserveGrad& observe) {
  for (const auto& view : views_) view->observe_grads(observe);
}

void ParamStore::reduce_complete_grads() {
  for (const auto& view : views_) view->reduce_complete_grads();
}

void ParamStore::add_partial_sum(ParamId id, std::int64_t begin, std::int64_t count,
                                 parallel::Communicator& group, const char* label) {
  view_of(id).add_partial_sum(id, begin, count, group, label);
}

void ParamStore::finish_grads() {
  for (const auto& view : views_) view->finish_grads();
}

void ParamStore::initialise(Stream& stream, std::uint64_t seed) {
  for (const auto& view : views_) view->initialise(stream, seed);
  publish(stream);
}

void ParamStore::initialise_trainable(Stream& stream, std::uint64_t seed) {
  for (const auto& view : views_)
    if (view->trainable()) view->initialise(stream, seed);
}

void ParamStore::begin_averages(Stream& stream) {
  for (const auto& view : views_) view->begin_average(stream);
}

void ParamStore::read(Stream& stream, Read which) {
  for (const auto& view : views_)
    if (view->has_grads()) view->read_average(stream, which == Read::averages);
}

void ParamStore::publish(Stream& stream) {
  for (const auto& view : views_) view->publish(stream);
}

void ParamStore::updated(Stream& stream) {
  for (const auto& view : views_) view->updated(stream);
}

void ParamStore::finish_gathers(kernels::Stream& stream) {
  for (const auto& view : views_) view->finish_gathers(stream);
}

}  // namespace trainerd::core::model
