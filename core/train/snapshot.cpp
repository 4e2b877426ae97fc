#include "core/train/snapshot.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/version.h"
#include "kernels/base/error.h"

namespace trainerd::core {
namespace {

using namespace kernels;

constexpr std::array<const char*, 3> kPrefixes{"", "optimizer.moment1.", "optimizer.moment2."};

std::vector<std::int64_t> to_vector(const Shape& shape) {
  return {shape.sizes.begin(), shape.sizes.begin() + shape.ndim};
}

}  // namespace

Snapshot::Snapshot(const ParamStore& params) {
  std::vector<io::StoredTensor> stored;
  for (int array = 0; array < static_cast<int>(kPrefixes.size()); ++array) {
    for (ParamId id = 0; id < params.count(); ++id) {
      const ParamInfo& info = params.info(id);
      if (!info.shard.owner) continue;
      parts_.push_back({id, array});
      const Tensor t = tensor(params, parts_.back());
      const std::string name = kPrefixes[static_cast<std::size_t>(array)] + info.name;
      const std::vector<std::int64_t> shape = to_vector(info.shard.logical);
      stored.push_back({name, t.dtype, shape, 0, t.bytes()});
      slices_.push_back({name, t.dtype, shape, std::vector<std::int64_t>(shape.size(), 0), shape});
    }
  }
  layout_ = io::lay_out_safetensors(std::move(stored), {{"format", "trainerd"}});
}

Tensor Snapshot::tensor(const ParamStore& params, const Part& part) {
  const std::array<const Tensor*, 3> flats{&params.flat_master(), &params.flat_moment1(), &params.flat_moment2()};
  return params.part(*flats[static_cast<std::size_t>(part.array)], part.id);
}

void Snapshot::fill(ParamStore& params, Backend& backend, Stream& stream, std::span<std::byte> segment) const {
  base::check(static_cast<std::int64_t>(segment.size()) >= bytes(), "a snapshot's segment holds all of it");
  const std::int64_t data = static_cast<std::int64_t>(layout_.header.size());
  std::memcpy(segment.data(), layout_.header.data(), layout_.header.size());
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const io::StoredTensor& stored = layout_.tensors[i];
    backend.read_back(stream, tensor(params, parts_[i]),
                      segment.subspan(static_cast<std::size_t>(data + stored.begin), static_cast<std::size_t>(stored.end - stored.begin)));
  }
}

void Snapshot::load(ParamStore& params, Backend& backend, Stream& stream, io::CheckpointReader& reader) const {
  std::vector<std::byte> staging;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Tensor t = tensor(params, parts_[i]);
    staging.resize(std::max(staging.size(), static_cast<std::size_t>(t.bytes())));
    const std::span<std::byte> bytes(staging.data(), static_cast<std::size_t>(t.bytes()));
    reader.read(slices_[i], bytes);
    backend.write(stream, bytes, t);
  }
  params.publish(stream);
}

std::map<std::string, std::string> checkpoint_identity(const JobSpec& job) {
  const ModelOptions& m = job.model;
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  return {{"model.layers", std::to_string(m.layers)},
          {"model.hidden", std::to_string(m.hidden)},
          {"model.heads", std::to_string(m.heads)},
          {"model.kv_heads", std::to_string(m.kv_heads)},
          {"model.head_dim", std::to_string(m.head_dim)},
          {"model.ffn", std::to_string(m.ffn)},
          {"model.vocab", std::to_string(m.vocab)},
          {"model.seq_len", std::to_string(m.seq_len)},
          {"model.norm", m.norm == Norm::rms ? "rms" : "layer"},
          {"model.positions", m.positions == Positions::rope ? "rope" : "learned"},
          {"model.mlp", m.mlp == Mlp::swiglu ? "swiglu" : "gelu"},
          {"model.bias", flag(m.linear_bias)},
          {"model.qkv_bias", flag(m.qkv_bias)},
          {"model.qk_norm", flag(m.qk_norm)},
          {"model.tie_embeddings", flag(m.tie_embeddings)},
          {"seed", std::to_string(job.seed)},
          {"optimizer.name", job.optimizer.name},
          {"precision.master", name_of(job.precision.master)},
          {"precision.moments", name_of(job.precision.moments)}};
}

std::map<std::string, std::string> checkpoint_environment(const Target& target, const std::string& layout) {
  return {{"device", to_string(target.kind)}, {"processor", target.name}, {"isa", to_string(target.isa)},
          {"bf16_gemm", target.bf16_gemm ? "true" : "false"}, {"threads", std::to_string(target.threads)},
          {"layout", layout}, {"trainerd", version()}, {"gemm_library", target.gemm_library}};
}

void require_same_identity(const std::string& path, const std::map<std::string, std::string>& saved, const JobSpec& job) {
  std::string differences;
  for (const auto& [key, value] : checkpoint_identity(job)) {
    const auto it = saved.find(key);
    const std::string was = it == saved.end() ? "absent" : it->second;
    if (was != value) differences += "\n  " + key + ": the checkpoint has " + was + ", the job " + value;
  }
  if (!differences.empty())
    throw base::checkpoint_error("the job cannot resume from " + path + ", which another job made:" + differences +
                                 "\n  give the job another `output`, or make it agree");
}

}  // namespace trainerd::core
