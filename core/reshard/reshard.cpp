#include "core/reshard/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "core/model/param_store.h"
#include "core/rank/device_rank.h"
#include "core/rank/param_record.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "io/checkpoint/compare.h"
#include "io/checkpoint/files.h"
#include "io/checkpoint/report.h"
#include "io/checkpoint/tensor_file.h"
#include "io/hash/hash.h"
#include "io/storage/new_directory.h"
#include "kernels/base/error.h"

namespace trainerd::core::reshard {
namespace {

/// A complete checkpoint, open for reading.
struct Source {
  std::string path;
  std::unique_ptr<io::CheckpointReader> reader;
  const io::Manifest& manifest() const { return reader->manifest(); }
};

Source open_newest(const std::string& path) {
  const io::CheckpointsAt found = io::checkpoints_at(path);
  if (found.complete.empty()) throw base::checkpoint_error("no complete checkpoint in " + path);
  const io::Verified newest = io::verified(found.complete.front());
  if (!newest.manifest) throw base::checkpoint_error(newest.problem);
  return {newest.where.path, std::make_unique<io::CheckpointReader>(newest.where.path)};
}

using Give = std::function<void(const io::TensorSlice& piece, std::span<std::byte> out)>;

/// Writes one shard's file with `slices` in order.
io::WrittenShard write_shard(const std::string& path, std::vector<io::TensorSlice> slices, const Give& give) {
  std::vector<io::StoredTensor> stored;
  for (const io::TensorSlice& slice : slices)
    stored.push_back({.name = slice.stored_name(), .dtype = slice.dtype, .shape = slice.shape});
  io::TensorFileWriter writer(
      path, io::lay_out_safetensors(std::move(stored), {{"format", "trainerd"}}, io::Gaps::none));
  std::vector<std::byte> bytes;
  for (io::TensorSlice& slice : slices) {
    io::Xxh3Of64 hash;
    io::for_each_piece(slice, io::kTensorPieceBytes, [&](const io::TensorSlice& piece) {
      bytes.resize(static_cast<std::size_t>(io::tensor_bytes(piece.dtype, piece.shape)));
      give(piece, bytes);
      writer.append(bytes);
      hash.update(bytes);
    });
    slice.xxh3 = hash.value();
  }
  return {writer.finish(), std::move(slices)};
}

/// Writes a complete checkpoint, with shards by rank.
Made write_checkpoint(const std::string& path, const io::TrainingState& state,
                      const std::vector<std::vector<io::TensorSlice>>& ranks, const Give& give) {
  io::NewDirectory out(path);
  std::vector<io::WrittenShard> shards;
  Made made{.path = std::filesystem::absolute(io::local_path(path)).lexically_normal().string(),
            .from = {},
            .step = state.step,
            .shards = static_cast<std::int64_t>(ranks.size())};
  for (const std::vector<io::TensorSlice>& slices : ranks) {
    const std::string file = fmt::format("shard-{:05}.safetensors", shards.size());
    shards.push_back(write_shard(out.partial() + "/" + file, slices, give));
    made.bytes += shards.back().info.bytes;
  }
  const std::string manifest = io::to_json(state, shards);
  io::parse_manifest(manifest);  // only a readable manifest makes a checkpoint
  const std::string marker = io::xxh3_hex(io::bytes_of(manifest)) + "\n";
  const std::unique_ptr<io::Storage> storage = io::open_storage(out.partial());
  storage->write(io::kManifestFile, io::bytes_of(manifest));
  storage->write(io::kMarkerFile, io::bytes_of(marker));
  out.complete();
  return made;
}

void require_layout_key(const std::string& text) {
  const std::string key = text.substr(0, text.find('='));
  if (key.starts_with("parallel.") || key.starts_with("cluster.") || key == "batch.micro") return;
  throw base::spec_error(
      "--set " + text +
      ": a checkpoint is resharded to another layout alone: parallel, cluster, batch.micro");
}

// ---- mean of several checkpoints

/// Rounds once. Rounding to fp32 first could move a value beside the middle of two bf16 numbers onto it.
kernels::Bf16 nearest_bf16(double x) {
  auto near = static_cast<float>(x);
  if ((std::bit_cast<std::uint32_t>(near) & 0xffffu) == 0x8000u && double{near} != x)
    near = std::nextafter(near, x > double{near} ? std::numeric_limits<float>::infinity()
                                                 : -std::numeric_limits<float>::infinity());
  return kernels::to_bf16(near);
}

/// Writes the mean of boxes of `piece`'s dtype to `out`.
void average(const io::TensorSlice& piece, const std::vector<std::vector<std::byte>>& all,
             std::span<std::byte> out) {
  const auto count = static_cast<double>(all.size());
  std::vector<double> sum, values;
  for (const std::vector<std::byte>& bytes : all) {
    io::to_doubles(piece.dtype, bytes, values);
    sum.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
  const auto put = [&](std::size_t i, const auto& value) {
    std::memcpy(out.data() + i * sizeof(value), &value, sizeof(value));
  };
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const double mean = sum[i] / count;
    if (piece.dtype == kernels::DType::f64) put(i, mean);
    else if (piece.dtype == kernels::DType::f32) put(i, static_cast<float>(mean));
    else put(i, nearest_bf16(mean));
  }
}

bool has_mean(kernels::DType dtype) {
  return dtype == kernels::DType::f32 || dtype == kernels::DType::bf16 || dtype == kernels::DType::f64;
}

/// Throws if two checkpoints cannot be averaged.
void require_alike(const Source& a, const Source& b) {
  const auto& here = a.manifest().state.identity;
  const auto& there = b.manifest().state.identity;
  for (const auto& [key, value] : here)
    if (const auto found = there.find(key); key != "seed" && key != "data" && !key.starts_with("data.") &&
                                            (found == there.end() || found->second != value))
      throw base::checkpoint_error(a.path + " and " + b.path + " were made with another " + key + ": " +
                                   value + ", and " + (found == there.end() ? "none" : found->second));
  // Adapters can only be averaged for the same base.
  if (here.contains("lora.rank") && a.manifest().state.origin != b.manifest().state.origin)
    throw base::checkpoint_error(a.path + " and " + b.path + " hold adapters of different base weights");
  const std::vector<io::TensorSlice> of_a = io::whole_tensors(a.manifest()),
                                     of_b = io::whole_tensors(b.manifest());
  for (std::size_t i = 0; i < std::max(of_a.size(), of_b.size()); ++i) {
    if (i < of_a.size() && i < of_b.size() && of_a[i].name == of_b[i].name &&
        of_a[i].dtype == of_b[i].dtype && of_a[i].shape == of_b[i].shape)
      continue;
    throw base::checkpoint_error(a.path + " and " + b.path + " do not hold the same tensors: see " +
                                 (i < of_a.size() ? of_a[i].name : of_b[i].name));
  }
}

}  // namespace

Made reshard(const std::string& from, const std::string& out, const std::vector<std::string>& overrides) {
  for (const std::string& text : overrides) require_layout_key(text);
  const Source source = open_newest(from);
  io::TrainingState state = source.manifest().state;
  if (state.job.empty())
    throw base::checkpoint_error(source.path + ": holds no job, whose layout could be changed: " +
                                 (state.origin.empty() ? "an older version made it"
                                                       : "it holds weights alone, which any layout reads"));
  const job::JobSpec job = spec::parse_job(state.job, source.path + ": its job", overrides);
  const parallel::Topology topology = spec::job_topology(job, spec::Absent::assumed);
  const parallel::Layout layout = rank::layout_of(job, topology);
  std::vector<std::vector<io::TensorSlice>> ranks;
  for (std::int64_t r = 0; r < layout.grid.ranks(); ++r)
    ranks.push_back(rank::saved_slices(job, layout, r, topology.device));
  state.job = spec::to_yaml(job);
  state.environment["layout"] = parallel::describe(layout);
  Made made = write_checkpoint(
      out, state, ranks,
      [&](const io::TensorSlice& piece, std::span<std::byte> bytes) { source.reader->read(piece, bytes); });
  made.from = {source.path};
  made.layout = state.environment["layout"];
  return made;
}

Made merge(const std::vector<std::string>& from, const std::string& out) {
  std::vector<Source> sources;
  for (const std::string& path : from) sources.push_back(open_newest(path));
  const auto later = [](const Source& a, const Source& b) {
    return a.manifest().state.step < b.manifest().state.step;
  };
  const Source& newest = *std::max_element(sources.begin(), sources.end(), later);
  for (const Source& source : sources) require_alike(newest, source);
  std::vector<std::vector<io::TensorSlice>> ranks(newest.manifest().shards.size());
  for (const auto& [shard, slice] : newest.manifest().slices)
    ranks[static_cast<std::size_t>(shard)].push_back(slice);
  std::vector<std::vector<std::byte>> all(sources.size());
  Made made = write_checkpoint(
      out, newest.manifest().state, ranks, [&](const io::TensorSlice& piece, std::span<std::byte> bytes) {
        for (std::size_t i = 0; i < sources.size(); ++i) {
          all[i].resize(bytes.size());
          sources[i].reader->read(piece, all[i]);
        }
        // A mean of scales might be no power of two.
        if (piece.name == model::kLossScaleState) return newest.reader->read(piece, bytes);
        if (has_mean(piece.dtype)) return average(piece, all, bytes);
        if (std::any_of(all.begin(), all.end(), [&](const auto& other) { return other != all.front(); }))
          throw base::checkpoint_error(piece.name + " is of " + kernels::name_of(piece.dtype) +
                                       ", of which there is no mean, and differs");
        std::copy(all.front().begin(), all.front().end(), bytes.begin());
      });
  for (const Source& source : sources) made.from.push_back(source.path);
  made.layout = newest.manifest().state.environment.contains("layout")
                    ? newest.manifest().state.environment.at("layout")
                    : "";
  return made;
}

}  // namespace trainerd::core::reshard
