#include <algorithm>
#include <set>
#include <utility>

#include "io/checkpoint/checkpoint.h"
#include "io/text/json.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr const char* kFormat = "trainerd checkpoint";
constexpr std::int64_t kVersion = 1;

kernels::DType dtype_of(const std::string& word) {
  if (const auto dtype = kernels::parse_dtype(word)) return *dtype;
  throw JsonError("dtype \"" + word + "\" is not known");
}

// Shards lie in the checkpoint's own folder: a name must not lead out of it.
void check_file_name(const std::string& file) {
  const bool plain = !file.empty() && file.front() != '.' && file.size() < 200 &&
                     std::all_of(file.begin(), file.end(),
                                 [](char c) { return c > ' ' && c != '/' && c != '\\' && c != 0x7f; });
  if (!plain) throw JsonError("\"" + file + "\" is not the name of a shard file");
}

ShardInfo parse_shard(const nlohmann::json& json) {
  ShardInfo shard{.file = string_member(json, "file"),
                  .bytes = int_member(json, "bytes"),
                  .xxh3 = string_member(json, "xxh3")};
  check_file_name(shard.file);
  if (shard.bytes < 0) throw JsonError("a shard of negative size");
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (shard.xxh3.size() != 32 || !std::all_of(shard.xxh3.begin(), shard.xxh3.end(), is_hex))
    throw JsonError("the checksum of " + shard.file + " is not 32 hex digits");
  return shard;
}

TensorSlice parse_slice(const nlohmann::json& json) {
  TensorSlice slice{.name = string_member(json, "name"),
                    .dtype = dtype_of(string_member(json, "dtype")),
                    .logical_shape = sizes_member(json, "logical_shape"),
                    .begin = sizes_member(json, "begin"),
                    .shape = sizes_member(json, "shape")};
  if (json.contains("stored")) slice.stored = string_member(json, "stored");
  const std::size_t ndim = slice.logical_shape.size();
  if (slice.begin.size() != ndim || slice.shape.size() != ndim)
    throw JsonError(slice.name + ": begin, shape and logical_shape have different numbers of dimensions");
  for (std::size_t d = 0; d < ndim; ++d)
    if (slice.begin[d] > slice.logical_shape[d] || slice.shape[d] > slice.logical_shape[d] - slice.begin[d])
      throw JsonError(slice.name + ": a slice reaches outside its tensor");
  tensor_bytes(slice.dtype, slice.logical_shape);
  return slice;
}

Manifest parse(const std::string& text) {
  const nlohmann::json json = parse_json(text);
  if (string_member(json, "format") != kFormat)
    throw JsonError("\"format\" is not \"" + std::string(kFormat) + "\"");
  const std::int64_t version = int_member(json, "version");
  if (version != kVersion)
    throw JsonError("version " + std::to_string(version) + "; this program reads version " +
                    std::to_string(kVersion));
  Manifest manifest;
  TrainingState& state = manifest.state;
  state.step = int_member(json, "step");
  state.cursor = int_member(json, "cursor");
  state.tokens = int_member(json, "tokens");
  if (state.step < 0 || state.cursor < 0 || state.tokens < 0)
    throw JsonError("a negative step, cursor or token count");
  state.seed = uint_member(json, "seed");
  state.identity = text_map(json, "identity");
  state.environment = text_map(json, "environment");
  if (json.contains("order_start")) state.order_start = int_member(json, "order_start");
  if (json.contains("order_stream")) state.order_stream = int_member(json, "order_stream");
  if (state.order_start < 0 || state.order_start > state.cursor || state.order_stream < 0)
    throw JsonError(
        "an order of samples that does not begin between 0 and the cursor, or of a negative number");
  if (json.contains("job")) state.job = string_member(json, "job");
  std::set<std::string> files;
  for (const nlohmann::json& item : member(json, "shards")) {
    manifest.shards.push_back(parse_shard(item));
    if (!files.insert(manifest.shards.back().file).second)
      throw JsonError(manifest.shards.back().file + " is listed twice");
  }
  std::set<std::pair<int, std::string>> held;
  std::map<std::string, std::pair<kernels::DType, std::vector<std::int64_t>>> tensors;
  for (const nlohmann::json& item : member(json, "slices")) {
    const std::int64_t shard = int_member(item, "shard");
    TensorSlice slice = parse_slice(item);
    if (shard < 0 || std::cmp_greater_equal(shard, manifest.shards.size()))
      throw JsonError(slice.name + ": shard " + std::to_string(shard) + " does not exist");
    if (!held.emplace(static_cast<int>(shard), slice.stored_name()).second)
      throw JsonError(slice.stored_name() + ": shard " + std::to_string(shard) +
                      " holds two slices of that name");
    const auto [known, is_new] = tensors.try_emplace(slice.name, slice.dtype, slice.logical_shape);
    if (!is_new && known->second != std::pair(slice.dtype, slice.logical_shape))
      throw JsonError(slice.name + ": two slices disagree on its dtype or shape");
    manifest.slices.emplace_back(static_cast<int>(shard), std::move(slice));
  }
  return manifest;
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["step"] = manifest.state.step;
  json["cursor"] = manifest.state.cursor;
  json["tokens"] = manifest.state.tokens;
  json["seed"] = manifest.state.seed;
  json["identity"] = manifest.state.identity;
  json["environment"] = manifest.state.environment;
  json["order_start"] = manifest.state.order_start;
  json["order_stream"] = manifest.state.order_stream;
  if (!manifest.state.job.empty()) json["job"] = manifest.state.job;
  json["shards"] = nlohmann::ordered_json::array();
  for (const ShardInfo& shard : manifest.shards)
    json["shards"].push_back({{"file", shard.file}, {"bytes", shard.bytes}, {"xxh3", shard.xxh3}});
  json["slices"] = nlohmann::ordered_json::array();
  for (const auto& [shard, slice] : manifest.slices) {
    json["slices"].push_back({{"name", slice.name},
                              {"dtype", kernels::name_of(slice.dtype)},
                              {"logical_shape", slice.logical_shape},
                              {"shard", shard},
                              {"begin", slice.begin},
                              {"shape", slice.shape}});
    if (!slice.stored.empty()) json["slices"].back()["stored"] = slice.stored;
  }
  return to_text(json, 1) + "\n";
}

Manifest parse_manifest(const std::string& text) {
  try {
    return parse(text);
  } catch (const JsonError& e) {
    throw base::checkpoint_error(std::string("manifest: ") + e.what());
  }
}

void check_shard(const SafetensorsHeader& header, std::span<const TensorSlice> slices,
                 const std::string& file) {
  std::map<std::string, const StoredTensor*> stored;  // a header's own find() is linear
  for (const StoredTensor& tensor : header.tensors) stored[tensor.name] = &tensor;
  for (const TensorSlice& slice : slices) {
    const auto found = stored.find(slice.stored_name());
    if (found == stored.end())
      throw base::checkpoint_error(file + ": does not hold " + slice.name +
                                   ", which the manifest says it does");
    if (found->second->dtype != slice.dtype || found->second->shape != slice.shape)
      throw base::checkpoint_error(file + ": holds " + slice.name +
                                   " in another dtype or shape than the manifest says");
    stored.erase(found);
  }
  if (!stored.empty())
    throw base::checkpoint_error(file + ": holds " + stored.begin()->first +
                                 ", which the manifest does not know");
}

}  // namespace trainerd::io
