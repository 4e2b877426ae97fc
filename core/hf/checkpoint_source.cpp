#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "core/hf/config.h"
#include "core/hf/elements.h"
#include "core/hf/tensor_files.h"
#include "core/hf/weight_source.h"
#include "core/model/identity.h"
#include "io/checkpoint/files.h"
#include "io/checkpoint/report.h"
#include "io/hash/hash.h"
#include "io/storage/storage.h"
#include "kernels/base/error.h"

// A checkpoint of this program as a source of weights.

namespace trainerd::core::hf {
namespace {

class Checkpoint final : public WeightSource {
 public:
  Checkpoint(const std::string& path, Weights weights);
  std::string outline() const override;
  std::string verify() const override;
  void read(const io::TensorSlice& box, std::span<std::byte> out) const override;

 private:
  mutable io::CheckpointReader reader_;
  std::vector<std::string> stored_;  ///< names in the checkpoint, parallel to `tensors_`
};

Checkpoint::Checkpoint(const std::string& path, Weights weights) : reader_(path) {
  path_ = path;
  const io::TrainingState& state = reader_.manifest().state;
  model_ = model::model_of(state.identity, path_);
  if (model::lora_of(state.identity, path_).on())
    throw base::checkpoint_error(
        path_ +
        ": holds adapters (LoRA), and not the weights beside which they were trained: "
        "make a model of both by `trainerd export --merge`, and take that");
  origin_ = parse_origin(state.origin, path_);
  if (!origin_.tokenizer.empty()) tokenizer_ = tokenizer_of(path_);
  if (model_.positions == job::Positions::learned) longest_sequence_ = model_.seq_len;
  // Older versions without windows left them out, because sequences fitted into them.
  if (!origin_.config.empty() && model_.attention.window == 0)
    model_.attention = read_config(origin_.config, path_ + ": its record of config.json").model.attention;
  std::map<std::string, const io::TensorSlice*> held;
  for (const auto& [shard, slice] : reader_.manifest().slices) held[slice.name] = &slice;
  const std::set<std::string> biases = expert_biases(model_);
  // Names and shapes are this program's, so the family does not matter.
  for (const io::TensorSlice& tensor : model_tensors(model_)) {
    const std::string stored = (biases.contains(tensor.name) ? "" : name_prefix(weights)) + tensor.name;
    const auto found = held.find(stored);
    if (found == held.end() && weights == Weights::average) no_average(path_);
    if (found == held.end())
      throw base::checkpoint_error(path_ + ": holds no tensor " + tensor.name +
                                   ", which the model that it says has: it is damaged; take another");
    if (found->second->logical_shape != tensor.logical_shape ||
        (found->second->dtype != kernels::DType::f32 && found->second->dtype != kernels::DType::bf16))
      throw base::checkpoint_error(path_ + ": " + tensor.name +
                                   " is not of the shape and dtype that the model that it says has: it is "
                                   "damaged; take another");
    tensors_.push_back({tensor.name, found->second->dtype, tensor.logical_shape});
    stored_.push_back(stored);
  }
}

std::string Checkpoint::outline() const {
  const std::string text = io::to_json(reader_.manifest());
  return io::xxh3_hex(std::as_bytes(std::span(text)));
}

std::string Checkpoint::verify() const {
  io::verify_checkpoint(path_);
  std::vector<std::byte> rows;
  for (const SourceTensor& tensor : tensors_) {
    io::TensorSlice box{.name = tensor.name,
                        .dtype = tensor.dtype,
                        .logical_shape = tensor.shape,
                        .begin = std::vector<std::int64_t>(tensor.shape.size(), 0),
                        .shape = tensor.shape};
    const std::int64_t count = tensor.shape[0],
                       row_bytes = io::tensor_bytes(tensor.dtype, tensor.shape) / count,
                       step = std::max<std::int64_t>(1, kPieceBytes / row_bytes);
    for (box.begin[0] = 0; box.begin[0] < count; box.begin[0] += step) {
      box.shape[0] = std::min(step, count - box.begin[0]);
      rows.resize(static_cast<std::size_t>(box.shape[0] * row_bytes));
      read(box, rows);  // throws for a value that is not finite
    }
  }
  return outline();  // checksums of all shards are in the manifest
}

void Checkpoint::read(const io::TensorSlice& box, std::span<std::byte> out) const {
  const std::size_t index = index_of(box);
  const SourceTensor& tensor = tensors_[index];
  io::TensorSlice stored = box;
  stored.name = stored_[index];
  stored.dtype = tensor.dtype;
  stored.logical_shape = tensor.shape;
  std::vector<std::byte> raw(static_cast<std::size_t>(io::tensor_bytes(tensor.dtype, box.shape)));
  reader_.read(stored, raw);
  if (const auto bad = convert(element_of(tensor.dtype), raw, box.dtype, out))
    not_finite(path_, box.name, *bad);
}

}  // namespace

std::string tokenizer_of(const std::string& checkpoint) {
  namespace fs = std::filesystem;
  fs::path here = fs::absolute(checkpoint).lexically_normal();
  if (!here.has_filename()) here = here.parent_path();
  for (const fs::path& near : {here / kCompanionFolder, here.parent_path().parent_path() / kCompanionFolder})
    if (std::error_code ignored; fs::is_directory(near, ignored)) return near.string();
  return "";
}

std::unique_ptr<WeightSource> open_checkpoint(const std::string& path, Weights weights) {
  const io::CheckpointsAt found = io::checkpoints_at(path);
  if (!found.complete.empty()) return std::make_unique<Checkpoint>(found.complete.front().path, weights);
  std::string text = path +
                     " is neither a Hugging Face directory (it has no config.json) nor a checkpoint, nor a "
                     "run's output with one that is complete";
  for (const io::StoredCheckpoint& stored : found.incomplete)
    text += "\n" + stored.path + " has no file COMPLETE: it was never finished";
  throw base::checkpoint_error(text);
}

}  // namespace trainerd::core::hf
