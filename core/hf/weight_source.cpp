#include "core/hf/weight_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/model/param_view.h"
#include "io/storage/storage.h"
#include "kernels/base/error.h"

namespace trainerd::core::hf {

std::size_t WeightSource::index_of(const io::TensorSlice& box) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].name != box.name) continue;
    const std::vector<std::int64_t>& shape = tensors_[i].shape;
    const bool shorter = box.name == "positions.weight" && box.logical_shape.size() == shape.size() &&
                         box.logical_shape[0] <= shape[0] && box.logical_shape[1] == shape[1];
    if (box.logical_shape == shape || shorter) return i;
    throw base::checkpoint_error(
        fmt::format("{}: {} is {} there and {} in the job: the job's model is another one", path_, box.name,
                    shape, box.logical_shape));
  }
  throw base::checkpoint_error(path_ + ": holds no tensor " + box.name + ", which the job's model has");
}

void WeightSource::not_finite(const std::string& where, const std::string& tensor, std::int64_t element) {
  throw base::checkpoint_error(
      fmt::format("{}: {} has a value that is not finite (NaN or infinite), element {} of what was read: the "
                  "weights are damaged or training diverged; take others",
                  where, tensor, element));
}

std::string name_prefix(Weights weights) {
  return weights == Weights::average ? "optimizer." + std::string(model::kAverageState) + "." : "";
}

void no_average(const std::string& path) {
  throw base::checkpoint_error(
      path + ": holds no average of the weights: its job has no ema.decay; leave --ema out");
}

std::unique_ptr<WeightSource> open_weights(const std::string& path) {
  const std::unique_ptr<io::Storage> storage = io::open_storage(path);
  return storage->exists("config.json") ? open_directory(path) : open_checkpoint(path);
}

}  // namespace trainerd::core::hf
