#include "core/train/snapshot.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/model/identity.h"
#include "core/version/version.h"
#include "kernels/base/error.h"

namespace trainerd::core::train {
namespace {

using namespace kernels;

// Bytes read or written at once: tensors of any size pass through a host buffer of this size.
constexpr std::int64_t kStagingBytes = std::int64_t{64} << 20;

std::vector<std::int64_t> to_vector(const Shape& shape) {
  return {shape.sizes.begin(), shape.sizes.begin() + shape.ndim};
}

}  // namespace

Snapshot::Snapshot(const model::ParamStore& params) {
  std::map<std::string, int> boxes;  // number of slices of each logical tensor in this file
  std::vector<io::StoredTensor> stored;
  // `array_of` returns the array with a state part's elements.
  const auto add = [&](const model::ParamView& view, const std::string& prefix, const auto& array_of) {
    for (const model::StateRun& run : view.state_runs()) {
      const model::ParamInfo& info = params.info(run.id);
      Part part{array_of(view.state_parts()[run.part]).rows(run.begin, run.count),
                {},
                prefix.empty(),
                view.trainable(),
                run.owned,
                &view};
      const DType dtype = part.elements.dtype;
      const std::string name = prefix + info.name;
      part.slice = {name, dtype, to_vector(info.shard.file_shape()), run.box.begin, run.box.shape, {}};
      if (!view.trainable()) {
        has_base_ = true;
      } else if (run.owned) {
        const int box = boxes[name]++;
        if (box > 0) part.slice.stored = name + "#" + std::to_string(box);
        stored.push_back({part.slice.stored_name(), dtype, run.box.shape, 0, part.elements.bytes()});
        slices_.push_back(part.slice);
        saved_.push_back(parts_.size());
      } else {
        borrowed_.push_back(part.slice);
      }
      parts_.push_back(std::move(part));
    }
  };
  for (std::size_t v = 0; v < params.views(); ++v) {
    const model::ParamView& view = params.view(v);
    add(view, "", [](const model::StatePart& part) { return part.master; });
    for (std::size_t s = 0; s < view.states().size(); ++s)
      add(view, "optimizer." + view.states()[s] + ".",
          [s](const model::StatePart& part) { return part.states[s]; });
  }
  if (const Tensor& scale = params.loss_scale(); scale.defined()) {
    const std::vector<std::int64_t> shape = to_vector(scale.shape);
    // Every rank saves it, so that what a node holds is complete.
    Part part{scale, {model::kLossScaleState, scale.dtype, shape, {0}, shape, {}}};
    stored.push_back({part.slice.name, scale.dtype, shape, 0, scale.bytes()});
    slices_.push_back(part.slice);
    saved_.push_back(parts_.size());
    parts_.push_back(std::move(part));
  }
  layout_ = io::lay_out_safetensors(std::move(stored), {{"format", "trainerd"}}, io::Gaps::none);
}

void Snapshot::write_header(std::span<std::byte> segment) const {
  base::check(static_cast<std::int64_t>(segment.size()) >= bytes(), "a snapshot's segment holds all of it");
  std::memcpy(segment.data(), layout_.header.data(), layout_.header.size());
}

void Snapshot::each_saved(const std::function<void(const Tensor& elements, std::int64_t at)>& show) const {
  const auto data = static_cast<std::int64_t>(layout_.header.size());
  for (std::size_t i = 0; i < saved_.size(); ++i)
    show(parts_[saved_[i]].elements, data + layout_.tensors[i].begin);
}

void Snapshot::fill(Backend& backend, Stream& stream, std::span<std::byte> segment) const {
  write_header(segment);
  each_saved([&](const Tensor& elements, std::int64_t at) {
    backend.read_back(
        stream, elements,
        segment.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(elements.bytes())));
  });
}

/// A checkpoint of a job that does not scale the loss has no state of it: that stays as it is initially.
bool Snapshot::is_in(const io::CheckpointReader& reader, const Part& part) {
  return part.view != nullptr || reader.holds(part.slice.name);
}

void Snapshot::load(Backend& backend, Stream& stream, io::CheckpointReader& reader) const {
  std::vector<std::byte> staging;
  const auto read = [&](const io::TensorSlice& box, std::span<std::byte> out) { reader.read(box, out); };
  for (const Part& part : parts_)
    if (part.trainable && is_in(reader, part)) load_part(backend, stream, part, read, staging);
}

std::vector<io::TensorSlice> Snapshot::not_shared() const {
  std::vector<io::TensorSlice> boxes;
  for (const Part& part : parts_)
    if (part.trainable && !part.owned && part.view->saves_state()) boxes.push_back(part.slice);
  return boxes;
}

void Snapshot::load_and_share(Backend& backend, Stream& stream, io::CheckpointReader& reader) const {
  std::vector<std::byte> staging;
  const auto read = [&](const io::TensorSlice& box, std::span<std::byte> out) { reader.read(box, out); };
  for (const Part& part : parts_)
    if (part.trainable && (part.view == nullptr ? is_in(reader, part) : part.view->saves_state()))
      load_part(backend, stream, part, read, staging);
  // Ranks with equal state have the same parts, in the same order.
  for (const Part& part : parts_) {
    if (!part.trainable || part.view == nullptr) continue;
    for (parallel::Communicator* group : part.view->replica_groups())
      group->broadcast(stream, part.elements, 0, {.label = "state of replicas"})->wait(stream);
  }
}

void Snapshot::load_weights(Backend& backend, Stream& stream, const ReadBox& read) const {
  std::vector<std::byte> staging;
  for (const Part& part : parts_)
    if (part.weight && part.trainable != has_base_) load_part(backend, stream, part, read, staging);
}

void Snapshot::load_part(Backend& backend, Stream& stream, const Part& part, const ReadBox& read,
                         std::vector<std::byte>& staging) {
  const Tensor& t = part.elements;
  const std::int64_t rows = part.slice.shape[0], row_bytes = t.bytes() / std::max<std::int64_t>(1, rows);
  const std::int64_t step = std::max<std::int64_t>(1, kStagingBytes / std::max<std::int64_t>(1, row_bytes));
  for (std::int64_t row = 0; row < rows; row += step) {
    io::TensorSlice box = part.slice;
    box.begin[0] += row;
    box.shape[0] = std::min(step, rows - row);
    const std::int64_t elements = box.shape[0] * row_bytes / size_of(t.dtype);
    staging.resize(std::max(staging.size(), static_cast<std::size_t>(box.shape[0] * row_bytes)));
    const std::span<std::byte> bytes(staging.data(), static_cast<std::size_t>(box.shape[0] * row_bytes));
    read(box, bytes);
    backend.write(stream, bytes, t.rows(row * row_bytes / size_of(t.dtype), elements));
  }
}

std::map<std::string, std::string> checkpoint_identity(const job::JobSpec& job) {
  std::map<std::string, std::string> identity = model::model_identity(job.model);
  identity["seed"] = std::to_string(job.seed);
  identity["optimizer.name"] = to_string(job.optimizer.kind);
  identity["precision.master"] = name_of(job.precision.master);
  identity["precision.moments"] = name_of(job.precision.moments);
  if (job.optimizer.average.on()) identity["ema"] = "true";
  identity.merge(model::lora_identity(job.model.lora));
  return identity;
}

std::map<std::string, std::string> checkpoint_environment(const Target& target, const std::string& layout) {
  return {{"device", to_string(target.kind)},
          {"processor", target.name},
          {"isa", to_string(target.isa)},
          {"bf16_gemm", target.bf16_gemm ? "true" : "false"},
          {"amx", target.amx ? "true" : "false"},
          {"threads", std::to_string(target.threads)},
          {"layout", layout},
          {"trainerd", version::version()},
          {"gemm_library", target.gemm_library},
          {"attention_library", target.attention_library}};
}

void require_same_identity(const std::string& path, const std::map<std::string, std::string>& saved,
                           const job::JobSpec& job) {
  std::string differences;
  std::map<std::string, std::string> now = checkpoint_identity(job);
  // Old versions without windows accepted models with windows, for sequences that fit into one.
  if (!saved.contains("model.attention.window") && job.model.attention.window >= job.model.seq_len)
    now.erase("model.attention.window"), now.erase("model.attention.pattern");
  const auto compare = [&](const std::string& key) {
    const auto was = saved.find(key), is = std::as_const(now).find(key);
    const auto value = [](const auto& map, const auto& it) {
      return it == map.end() ? std::string("absent") : it->second;
    };
    if (value(saved, was) != value(now, is))
      differences +=
          "\n  " + key + ": the checkpoint has " + value(saved, was) + ", the job " + value(now, is);
  };
  for (const auto& [key, value] : now) compare(key);
  for (const auto& [key, value] : saved)
    if ((key.starts_with("model.") || key.starts_with(model::kLoraKeys)) && !now.contains(key)) compare(key);
  if (!differences.empty())
    throw base::checkpoint_error("the job cannot resume from " + path +
                                 ", which another job made:" + differences +
                                 "\n  give these keys the checkpoint's values to go on from it, or give the "
                                 "job another `output` to start anew");
}

std::string environment_differences(const std::map<std::string, std::string>& saved,
                                    const std::map<std::string, std::string>& now) {
  std::string text;
  const auto add = [&](const std::string& key, const std::string& was, const std::string& is) {
    text += (text.empty() ? "" : "; ") + key + " was " + was + ", is " + is;
  };
  for (const auto& [key, value] : now) {
    const auto it = saved.find(key);
    if (it == saved.end() || it->second != value) add(key, it == saved.end() ? "unknown" : it->second, value);
  }
  return text;
}

}  // namespace trainerd::core::train
