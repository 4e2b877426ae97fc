#include "core/hf/adapters.h"

#include <algorithm>

#include "core/hf/elements.h"
#include "core/model/identity.h"
#include "core/model/parameters.h"
#include "io/checkpoint/report.h"
#include "io/storage/storage.h"
#include "kernels/base/error.h"

namespace trainerd::core::hf {
namespace {

/// All parameters of a model, as if on one rank.
model::DeclaredParams whole_model(const job::ModelOptions& options) {
  const std::vector<parallel::ChunkSpan> whole{
      {.first_layer = 0, .layers = options.layers, .embedding = true, .head = true}};
  return model::declare_parameters(options, whole, 1, false, model::kLogicalVocab);
}

}  // namespace

struct AdapterCheckpoint::Reader {
  Reader(const std::string& path, Weights weights) : checkpoint(path), prefix(name_prefix(weights)) {}
  io::CheckpointReader checkpoint;
  std::string prefix;
  model::DeclaredParams declared;

  std::vector<float> read(const std::string& path, model::ParamId id, kernels::DType dtype) {
    const model::ParamInfo& info = declared.infos.at(static_cast<std::size_t>(id));
    const kernels::Shape& logical = info.shard.logical;
    const std::vector<std::int64_t> shape(logical.sizes.begin(), logical.sizes.begin() + logical.ndim);
    std::vector<std::byte> raw(static_cast<std::size_t>(io::tensor_bytes(dtype, shape)));
    checkpoint.read({.name = prefix + info.name,
                     .dtype = dtype,
                     .logical_shape = shape,
                     .begin = std::vector<std::int64_t>(shape.size(), 0),
                     .shape = shape},
                    raw);
    std::vector<float> values(static_cast<std::size_t>(logical.numel()));
    if (convert(element_of(dtype), raw, kernels::DType::f32, std::as_writable_bytes(std::span(values))))
      throw base::checkpoint_error(
          path + ": " + info.name +
          " has a value that is not finite (NaN or infinite): training diverged; take an "
          "earlier checkpoint");
    return values;
  }
};

AdapterCheckpoint::AdapterCheckpoint(const std::string& path, Weights weights)
    : path_(path), reader_(std::make_unique<Reader>(path, weights)) {
  const io::Manifest& manifest = reader_->checkpoint.manifest();
  model_ = model::model_of(manifest.state.identity, path_);
  model_.lora = model::lora_of(manifest.state.identity, path_);
  origin_ = parse_origin(manifest.state.origin, path_);
  if (!origin_.tokenizer.empty()) tokenizer_ = tokenizer_of(path_);
  reader_->declared = whole_model(model_);
  bool found = false;
  for (const auto& [shard, slice] : manifest.slices)
    if (slice.name.starts_with(reader_->prefix + "layers.") && slice.name.ends_with(".lora_a"))
      dtype_ = slice.dtype, found = true;
  if (!found && model_.lora.on() && weights == Weights::average) no_average(path_);
  for (const model::LayerParams& layer : reader_->declared.chunks.front().layers)
    for (const model::LinearParams* linear : layer.linears())
      if (linear->adapter.present())
        weights_.push_back(reader_->declared.infos.at(static_cast<std::size_t>(linear->weight)).name);
}

AdapterCheckpoint::~AdapterCheckpoint() = default;

WeightAdapters AdapterCheckpoint::read(const std::string& weight) const {
  const model::DeclaredParams& declared = reader_->declared;
  for (const model::LayerParams& layer : declared.chunks.front().layers)
    for (const model::LinearParams* linear : layer.linears()) {
      if (!linear->adapter.present()) continue;
      const model::ParamInfo& info = declared.infos.at(static_cast<std::size_t>(linear->weight));
      if (info.name != weight) continue;
      WeightAdapters adapters{.weight = weight,
                              .segments = linear->adapter.segments,
                              .whole = linear->adapter.whole,
                              .rows = {},
                              .columns = info.shard.logical[1],
                              .a = reader_->read(path_, linear->adapter.a, dtype_),
                              .b = reader_->read(path_, linear->adapter.b, dtype_)};
      // Tensor parallelism splits the projections of a merged weight as segments.
      if (adapters.whole) {
        adapters.rows = {info.shard.logical[0]};
        return adapters;
      }
      const bool by_rows = info.shard.dim == 0;
      for (const parallel::SplitSegment& segment : info.shard.segments)
        adapters.rows.push_back(by_rows ? segment.size : info.shard.logical[0]);
      return adapters;
    }
  base::check(false, "adapters are read of weights that have some");
  return {};
}

void AdapterCheckpoint::verify() const { io::verify_checkpoint(path_); }

std::unique_ptr<AdapterCheckpoint> open_adapters(const std::string& path, Weights weights) {
  const io::CheckpointsAt found = io::checkpoints_at(path);
  if (found.complete.empty()) return nullptr;
  auto adapters = std::make_unique<AdapterCheckpoint>(found.complete.front().path, weights);
  return adapters->model().lora.on() ? std::move(adapters) : nullptr;
}

namespace {

class Merged final : public WeightSource {
 public:
  Merged(std::unique_ptr<AdapterCheckpoint> adapters, std::unique_ptr<WeightSource> base)
      : adapters_(std::move(adapters)), base_(std::move(base)) {
    path_ = adapters_->path();
    model_ = adapters_->model();
    model_.lora = {};
    longest_sequence_ = base_->longest_sequence();
    origin_ = adapters_->origin();
    tokenizer_ = adapters_->tokenizer().empty() ? base_->tokenizer() : adapters_->tokenizer();
    tensors_ = base_->tensors();
  }
  std::string outline() const override { return base_->outline(); }
  std::string verify() const override;
  void read(const io::TensorSlice& box, std::span<std::byte> out) const override;

 private:
  void add_products(const io::TensorSlice& box, std::vector<float>& values) const;

  std::unique_ptr<AdapterCheckpoint> adapters_;
  std::unique_ptr<WeightSource> base_;
  mutable WeightAdapters last_;  ///< cache, because tensors are read one after the other, in pieces
};

std::string Merged::verify() const {
  adapters_->verify();
  const std::string content = base_->verify();
  if (content != adapters_->origin().content)
    throw base::checkpoint_error("the adapters of " + path_ + " were trained beside the weights of " +
                                 adapters_->origin().from + " (xxh3 " + adapters_->origin().content +
                                 "), and " + base_->path() + " has other weights or settings (xxh3 " +
                                 content + "): name the same with --base");
  return content;
}

void Merged::read(const io::TensorSlice& box, std::span<std::byte> out) const {
  const std::vector<std::string>& adapted = adapters_->weights();
  if (std::find(adapted.begin(), adapted.end(), box.name) == adapted.end()) return base_->read(box, out);
  io::TensorSlice wide = box;
  wide.dtype = kernels::DType::f32;
  std::vector<float> values(static_cast<std::size_t>(box.shape[0] * box.shape[1]));
  base_->read(wide, std::as_writable_bytes(std::span(values)));
  add_products(box, values);
  if (const auto bad = convert(Element::f32, std::as_bytes(std::span(values)), box.dtype, out))
    not_finite(path_, box.name, *bad);
}

/// values[row][column] += scale (B A)[row][column] of the box.
void Merged::add_products(const io::TensorSlice& box, std::vector<float>& values) const {
  if (last_.weight != box.name) last_ = adapters_->read(box.name);
  const job::LoraOptions& lora = adapters_->model().lora;
  const auto rank = static_cast<std::size_t>(lora.rank), width = static_cast<std::size_t>(box.shape[1]),
             columns = static_cast<std::size_t>(last_.columns), left = static_cast<std::size_t>(box.begin[1]);
  std::vector<double> sums(width);
  std::size_t row_of_b = 0;
  for (std::size_t i = 0; i < last_.segments.size(); ++i) {
    std::int64_t first = 0;
    for (std::size_t s = 0; s < last_.segments[i]; ++s) first += last_.rows[s];
    const std::int64_t rows = last_.rows[last_.segments[i]];
    const std::int64_t begin = std::max(first, box.begin[0]),
                       end = std::min(first + rows, box.begin[0] + box.shape[0]);
    for (std::int64_t row = begin; row < end; ++row) {
      const float* b = last_.b.data() + (row_of_b + static_cast<std::size_t>(row - first)) * rank;
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::size_t k = 0; k < rank; ++k) {
        const float* a = last_.a.data() + (i * rank + k) * columns + left;
        const auto factor = static_cast<double>(b[k]);
        for (std::size_t c = 0; c < width; ++c) sums[c] += factor * static_cast<double>(a[c]);
      }
      float* to = values.data() + static_cast<std::size_t>(row - box.begin[0]) * width;
      for (std::size_t c = 0; c < width; ++c)
        to[c] = static_cast<float>(static_cast<double>(to[c]) + static_cast<double>(lora.scale()) * sums[c]);
    }
    row_of_b += static_cast<std::size_t>(rows);
  }
}

}  // namespace

std::unique_ptr<WeightSource> merged_weights(std::unique_ptr<AdapterCheckpoint> adapters,
                                             const std::string& moved) {
  const std::string from = moved.empty() ? adapters->origin().from : moved;
  std::unique_ptr<WeightSource> weights;
  try {
    weights = open_weights(from);
  } catch (const base::Error& error) {
    throw base::checkpoint_error("the adapters of " + adapters->path() +
                                 " were trained beside the weights of " + adapters->origin().from + ": " +
                                 error.what() +
                                 "\n  bring them back there, or export with --merge and --base");
  }
  return std::make_unique<Merged>(std::move(adapters), std::move(weights));
}

std::unique_ptr<WeightSource> open_model(const std::string& path) {
  if (io::open_storage(path)->exists("config.json")) return open_directory(path);
  std::unique_ptr<AdapterCheckpoint> adapters = open_adapters(path);
  if (!adapters) return open_checkpoint(path);
  std::unique_ptr<WeightSource> model = merged_weights(std::move(adapters), "");
  model->verify();
  return model;
}

}  // namespace trainerd::core::hf
