#include "io/checkpoint/report.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "io/checkpoint/files.h"
#include "io/checkpoint/folders.h"
#include "io/storage/file_errors.h"
#include "io/storage/storage.h"
#include "io/text/json.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

Json stored_json(const StoredCheckpoint& stored) { return {{"step", stored.step}, {"path", stored.path}}; }

// Throws if there is no such directory.
void require_directory(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error && !is_absence(error.value()))
    throw StorageError(
        path + ": cannot look at it: " + base::errno_text(error.value()) + remedy_of(error.value(), false),
        error.value());
  if (!fs::is_directory(status)) throw base::checkpoint_error("there is no directory " + path);
}

}  // namespace

CheckpointsAt checkpoints_at(const std::string& uri, const OpenRemote& remote) {
  const bool far = remote && is_remote(uri);
  const std::string path = without_slash(far ? uri : local_path(uri));
  if (!far) require_directory(path);
  const std::unique_ptr<Storage> here = open_storage(path, remote);
  if (here->exists(kManifestFile) || here->exists(kMarkerFile)) {
    // A copy may have any name; its manifest gives the step.
    const auto folder = parse_folder(fs::path(path).filename().string());
    StoredCheckpoint stored{.step = folder ? folder->step : 0, .path = path};
    if (!here->exists(kMarkerFile)) return {.complete = {}, .incomplete = {stored}};
    if (!folder) stored.step = read_manifest(*here).state.step;
    return {.complete = {stored}, .incomplete = {}};
  }
  const std::string directory = here->exists("checkpoints") ? path + "/checkpoints" : path;
  return {.complete = list_checkpoints(directory, remote), .incomplete = list_incomplete(directory, remote)};
}

Verified verified(const StoredCheckpoint& where, const OpenRemote& remote) {
  try {
    return {where, verify_checkpoint(where.path, remote), ""};
  } catch (const base::CheckpointError& error) {
    return {where, std::nullopt, error.what()};
  }
}

std::int64_t bytes_of(const Manifest& manifest) {
  std::int64_t bytes = 0;
  for (const ShardInfo& shard : manifest.shards) bytes += shard.bytes;
  return bytes;
}

std::vector<TensorSummary> tensors_of(const Manifest& manifest) {
  std::map<std::string, TensorSummary> tensors;
  for (const auto& [shard, slice] : manifest.slices) {
    TensorSummary& tensor = tensors[slice.name];
    tensor = {slice.name, slice.dtype, slice.logical_shape, tensor.parts + 1};
  }
  std::vector<TensorSummary> all;
  for (auto& [name, tensor] : tensors) all.push_back(std::move(tensor));
  return all;
}

std::string list_json(const CheckpointsAt& checkpoints) {
  Json complete = Json::array(), incomplete = Json::array();
  for (const StoredCheckpoint& stored : checkpoints.complete) {
    complete.push_back(stored_json(stored));
    complete.back()["good"] = stored.good;
  }
  for (const StoredCheckpoint& stored : checkpoints.incomplete) incomplete.push_back(stored_json(stored));
  return to_text(Json{{"checkpoints", complete}, {"incomplete", incomplete}}, 2) + "\n";
}

std::string verify_json(const std::vector<Verified>& checkpoints) {
  Json list = Json::array();
  for (const Verified& checkpoint : checkpoints) {
    Json one = stored_json(checkpoint.where);
    one["complete"] = checkpoint.manifest.has_value();
    if (checkpoint.manifest) {
      one["shards"] = checkpoint.manifest->shards.size();
      one["bytes"] = bytes_of(*checkpoint.manifest);
    } else {
      one["problem"] = checkpoint.problem;
    }
    list.push_back(std::move(one));
  }
  return to_text(Json{{"checkpoints", list}}, 2) + "\n";
}

std::string show_json(const Verified& checkpoint, const Statistics& statistics) {
  const TrainingState& state = checkpoint.manifest->state;
  Json shards = Json::array(), tensors = Json::array();
  for (const ShardInfo& shard : checkpoint.manifest->shards)
    shards.push_back({{"file", shard.file}, {"bytes", shard.bytes}, {"xxh3", shard.xxh3}});
  for (const TensorSummary& tensor : tensors_of(*checkpoint.manifest)) {
    Json& one = tensors.emplace_back(Json{{"name", tensor.name},
                                          {"dtype", kernels::name_of(tensor.dtype)},
                                          {"shape", tensor.shape},
                                          {"parts", tensor.parts}});
    const auto found = statistics.find(tensor.name);
    if (found == statistics.end()) continue;
    const TensorStatistics& values = found->second;
    one["not_finite"] = values.not_finite;
    one["least"] = values.least;  // null if no element is finite
    one["most"] = values.most;
    one["mean"] = values.mean;
    one["root_mean_square"] = values.root_mean_square;
  }
  return to_text(Json{{"path", checkpoint.where.path},
                      {"step", state.step},
                      {"cursor", state.cursor},
                      {"tokens", state.tokens},
                      {"seed", state.seed},
                      {"identity", state.identity},
                      {"environment", state.environment},
                      {"shards", shards},
                      {"tensors", tensors}},
                 2) +
         "\n";
}

std::string diff_json(const Comparison& comparison) {
  Json different = Json::array();
  for (const TensorDifference& d : comparison.different) {
    Json& one = different.emplace_back(Json{{"name", d.name}});
    if (!d.problem.empty()) {
      one["problem"] = d.problem;
      continue;
    }
    one["unequal"] = d.unequal;
    one["elements"] = d.elements;
    one["largest"] = d.largest;  // null if infinite
    one["relative"] = d.relative;
    one["at"] = d.at;
  }
  return to_text(Json{{"tensors", comparison.tensors}, {"different", different}}, 2) + "\n";
}

}  // namespace trainerd::io
