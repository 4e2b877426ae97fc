#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>
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

// Shards lie in the checkpoint's folder, so a name must not point outside of it.
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

int shard_of(const nlohmann::json& json) {
  const std::int64_t shard = int_member(json, "shard");
  if (!std::in_range<int>(shard)) throw JsonError("shard " + std::to_string(shard) + " does not exist");
  return static_cast<int>(shard);
}

std::uint64_t checksum_of(const std::string& text, const std::string& name) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size())
    throw JsonError("the checksum of " + name + " is not 16 hex digits");
  return value;
}

TensorSlice parse_slice(const nlohmann::json& json) {
  TensorSlice slice{.name = string_member(json, "name"),
                    .dtype = dtype_of(string_member(json, "dtype")),
                    .logical_shape = sizes_member(json, "logical_shape"),
                    .begin = sizes_member(json, "begin"),
                    .shape = sizes_member(json, "shape")};
  if (json.contains("stored")) slice.stored = string_member(json, "stored");
  if (json.contains("xxh3")) slice.xxh3 = checksum_of(string_member(json, "xxh3"), slice.name);
  const std::size_t ndim = slice.logical_shape.size();
  if (slice.begin.size() != ndim || slice.shape.size() != ndim)
    throw JsonError(slice.name + ": begin, shape and logical_shape have different numbers of dimensions");
  for (std::size_t d = 0; d < ndim; ++d)
    if (slice.begin[d] > slice.logical_shape[d] || slice.shape[d] > slice.logical_shape[d] - slice.begin[d])
      throw JsonError(slice.name + ": a slice reaches outside its tensor");
  tensor_bytes(slice.dtype, slice.logical_shape);
  return slice;
}

SourceState parse_source(const nlohmann::json& json) {
  SourceState source{.name = string_member(json, "name"),
                     .files = string_member(json, "files"),
                     .content = string_member(json, "content"),
                     .weight = 0,
                     .limit = int_member(json, "limit"),
                     .stream = int_member(json, "stream"),
                     .before = int_member(json, "before"),
                     .taken = int_member(json, "taken")};
  const nlohmann::json& weight = member(json, "weight");
  if (!weight.is_number() || !(weight.get<double>() >= 0)) throw JsonError("\"weight\" is no number >= 0");
  source.weight = weight.get<double>();
  if (source.stream < 0 || source.before < 0 || source.taken < source.before)
    throw JsonError("source " + source.name + " has negative counts, or gave samples back");
  return source;
}

TrainingState parse_state(const nlohmann::json& json) {
  TrainingState state;
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
  if (json.contains("origin")) state.origin = string_member(json, "origin");
  return state;
}

void check_shards(const std::vector<ShardInfo>& shards) {
  std::set<std::string_view> files;
  for (const ShardInfo& shard : shards)
    if (!files.insert(shard.file).second) throw JsonError(shard.file + " is listed twice");
}

void check_slices(const Manifest& manifest) {
  std::vector<std::pair<int, std::string_view>> stored;  // in all shards
  std::map<std::string_view, const TensorSlice*> tensors;
  for (const auto& [shard, slice] : manifest.slices) {
    if (shard < 0 || std::cmp_greater_equal(shard, manifest.shards.size()))
      throw JsonError(slice.name + ": shard " + std::to_string(shard) + " does not exist");
    stored.emplace_back(shard, slice.stored_name());
    const TensorSlice& known = *tensors.try_emplace(slice.name, &slice).first->second;
    if (known.dtype != slice.dtype || known.logical_shape != slice.logical_shape)
      throw JsonError(slice.name + ": two slices disagree on its dtype or shape");
  }
  std::sort(stored.begin(), stored.end());
  if (const auto twice = std::adjacent_find(stored.begin(), stored.end()); twice != stored.end())
    throw JsonError(std::string(twice->second) + ": shard " + std::to_string(twice->first) +
                    " holds two slices of that name");
}

// Converts shards and slices one by one. With many ranks they are hundreds of megabytes of text and would
// take several times that as JSON in memory.
Manifest parse(const std::string& text) {
  Manifest manifest;
  std::vector<SourceState> sources;
  std::optional<JsonError> problem;  // the first one; it counts only if the version is right, since other
                                     // versions may have other entries
  const nlohmann::json json = parse_json(text, [&](const std::string& list, const nlohmann::json& item) {
    if (problem) return;
    try {
      if (list == "shards") manifest.shards.push_back(parse_shard(item));
      if (list == "slices") manifest.slices.emplace_back(shard_of(item), parse_slice(item));
      if (list == "sources") sources.push_back(parse_source(item));
    } catch (const JsonError& e) {
      problem = e;
    }
  });
  if (string_member(json, "format") != kFormat)
    throw JsonError("\"format\" is not \"" + std::string(kFormat) + "\"");
  const std::int64_t version = int_member(json, "version");
  if (version != kVersion)
    throw JsonError("version " + std::to_string(version) + "; this program reads version " +
                    std::to_string(kVersion));
  manifest.state = parse_state(json);
  manifest.state.sources = std::move(sources);
  for (const char* list : {"shards", "slices"})
    if (!member(json, list).is_array() || !member(json, list).empty())
      throw JsonError("\"" + std::string(list) + "\" is not a list of objects");
  if (problem) throw JsonError(*problem);
  check_shards(manifest.shards);
  check_slices(manifest);
  return manifest;
}

nlohmann::ordered_json source_json(const SourceState& source) {
  return {{"name", source.name},     {"files", source.files}, {"content", source.content},
          {"weight", source.weight}, {"limit", source.limit}, {"stream", source.stream},
          {"before", source.before}, {"taken", source.taken}};
}

// Builds the text of a manifest, indented by one, entry by entry. The whole as JSON in memory would be
// several times as large.
class ManifestText {
 public:
  explicit ManifestText(const TrainingState& state) {
    nlohmann::ordered_json json;
    json["format"] = kFormat;
    json["version"] = kVersion;
    json["step"] = state.step;
    json["cursor"] = state.cursor;
    json["tokens"] = state.tokens;
    json["seed"] = state.seed;
    json["identity"] = state.identity;
    json["environment"] = state.environment;
    json["order_start"] = state.order_start;
    json["order_stream"] = state.order_stream;
    if (!state.job.empty()) json["job"] = state.job;
    if (!state.origin.empty()) json["origin"] = state.origin;
    for (const SourceState& source : state.sources) json["sources"].push_back(source_json(source));
    text_ = to_text(json, 1);
    text_.resize(text_.size() - 2);  // drops the end of the object
  }
  void begin_list(const std::string& key) {
    text_ += ",\n \"" + key + "\": [";
    entries_ = 0;
  }
  void end_list() { text_ += entries_ == 0 ? "]" : "\n ]"; }
  void add(const ShardInfo& shard) {
    begin_entry();
    field("file", shard.file);
    field("bytes", shard.bytes);
    field("xxh3", shard.xxh3);
    end_entry();
  }
  void add(std::int64_t shard, const TensorSlice& slice) {
    begin_entry();
    field("name", slice.name);
    field("dtype", std::string(kernels::name_of(slice.dtype)));
    field("logical_shape", slice.logical_shape);
    field("shard", shard);
    field("begin", slice.begin);
    field("shape", slice.shape);
    if (!slice.stored.empty()) field("stored", slice.stored);
    if (slice.xxh3) field("xxh3", fmt::format("{:016x}", *slice.xxh3));
    end_entry();
  }
  std::string take() { return std::move(text_) + "\n}\n"; }

 private:
  void begin_entry() {
    text_ += entries_++ == 0 ? "\n  {" : ",\n  {";
    fields_ = 0;
  }
  void end_entry() { text_ += "\n  }"; }
  template <class Value>
  void field(const char* key, const Value& value) {
    text_ += fields_++ == 0 ? "\n   \"" : ",\n   \"";
    text_ += key;
    text_ += "\": ";
    put(value);
  }
  void put(std::int64_t value) { text_ += std::to_string(value); }
  void put(const std::string& value) {
    const bool plain = std::all_of(value.begin(), value.end(),
                                   [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
    if (plain) (text_ += '"').append(value) += '"';
    else text_ += to_text(value);
  }
  void put(const std::vector<std::int64_t>& sizes) {
    text_ += '[';
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      text_ += i == 0 ? "\n    " : ",\n    ";
      put(sizes[i]);
    }
    text_ += sizes.empty() ? "]" : "\n   ]";
  }

  std::string text_;
  std::int64_t entries_ = 0, fields_ = 0;
};

}  // namespace

std::string to_json(const Manifest& manifest) {
  ManifestText text(manifest.state);
  text.begin_list("shards");
  for (const ShardInfo& shard : manifest.shards) text.add(shard);
  text.end_list();
  text.begin_list("slices");
  for (const auto& [shard, slice] : manifest.slices) text.add(shard, slice);
  text.end_list();
  return text.take();
}

std::string to_json(const TrainingState& state, std::span<const WrittenShard> shards) {
  ManifestText text(state);
  text.begin_list("shards");
  for (const WrittenShard& shard : shards) text.add(shard.info);
  text.end_list();
  text.begin_list("slices");
  for (std::size_t i = 0; i < shards.size(); ++i)
    for (const TensorSlice& slice : shards[i].slices) text.add(static_cast<std::int64_t>(i), slice);
  text.end_list();
  return text.take();
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
  std::map<std::string, const StoredTensor*> stored;  // because a header's find() is linear
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
