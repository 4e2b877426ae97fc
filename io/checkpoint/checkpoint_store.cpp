#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <utility>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/files.h"
#include "io/checkpoint/hash.h"
#include "io/storage/storage.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

// Names in a run's checkpoint directory. "step-00000010" is a checkpoint once COMPLETE is in it; ".old" is
// the previous one of the same step while it is being replaced; ".partial-*" is being written or removed:
// ".partial-step-00000010-RUN" by the nodes of the run of that name.
constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kReplaced = ".old";
constexpr std::string_view kPartialPrefix = ".partial-";
constexpr std::size_t kChunkBytes = std::size_t{4} << 20;

struct Folder {
  std::int64_t step = 0;
  bool replaced = false;
  std::string name;
};

std::string folder_name(std::int64_t step) { return fmt::format("{}{:08}", kStepPrefix, step); }

std::optional<Folder> parse_folder(const std::string& name) {
  std::string_view rest = name;
  if (!rest.starts_with(kStepPrefix)) return std::nullopt;
  rest.remove_prefix(kStepPrefix.size());
  Folder folder{.step = 0, .replaced = rest.ends_with(kReplaced), .name = name};
  if (folder.replaced) rest.remove_suffix(kReplaced.size());
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), folder.step);
  if (error != std::errc() || end != rest.data() + rest.size() || folder.step < 0) return std::nullopt;
  return folder;
}

bool is_complete(const Storage& storage, const std::string& folder) {
  return storage.exists(folder + "/" + kMarkerFile);
}

// Complete folders, newest step first; a replaced one only where its successor was never completed.
std::vector<Folder> complete_folders(const Storage& storage) {
  std::vector<Folder> folders;
  for (const std::string& name : storage.list(""))
    if (std::optional<Folder> folder = parse_folder(name); folder && is_complete(storage, name))
      folders.push_back(*std::move(folder));
  std::sort(folders.begin(), folders.end(), [](const Folder& a, const Folder& b) {
    return a.step != b.step ? a.step > b.step : a.replaced < b.replaced;
  });
  const auto same_step = [](const Folder& a, const Folder& b) { return a.step == b.step; };
  folders.erase(std::unique(folders.begin(), folders.end(), same_step), folders.end());
  return folders;
}

// A folder that is being removed must never look complete with half its files gone: it loses its name first.
void remove_folder(Storage& storage, const std::string& name) {
  const std::string aside = std::string(kPartialPrefix) + "removed-" + name;
  storage.remove(aside);
  storage.rename(name, aside);
  storage.remove(aside);
}

// Whether other nodes of `run` may be writing it: a checkpoint of a step after `step`.
bool is_under_way(std::string_view name, std::int64_t step, const std::string& run) {
  const std::string suffix = "-" + run;
  if (run.empty() || !name.starts_with(kPartialPrefix) || !name.ends_with(suffix)) return false;
  name.remove_prefix(kPartialPrefix.size());
  name.remove_suffix(suffix.size());
  const auto folder = parse_folder(std::string(name));
  return folder && folder->step > step;
}

// Removes the leftovers of kills, and complete checkpoints beyond the newest `keep` up to `step`. Later steps
// are damaged ones that a resume passed over: they are left to be looked at, until training reaches their
// step again.
void clean_up(Storage& storage, std::int64_t step, std::int64_t keep, const std::string& run) {
  std::vector<std::string> kept;
  std::int64_t counted = 0;
  for (const Folder& folder : complete_folders(storage))
    if (folder.step > step || counted++ < keep) kept.push_back(folder.name);
  for (const std::string& name : storage.list("")) {
    if (name.starts_with(kPartialPrefix) && !is_under_way(name, step, run)) storage.remove(name);
    if (parse_folder(name) && std::find(kept.begin(), kept.end(), name) == kept.end())
      remove_folder(storage, name);
  }
  storage.sync_folder("");
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string shard_file(std::int64_t rank) { return fmt::format("shard-{:05}.safetensors", rank); }

// Other nodes wrote some of them: what one of them calls written must be what is here.
void require_there(const Storage& storage, const std::string& folder, std::span<const WrittenShard> shards) {
  for (const WrittenShard& shard : shards) {
    const std::string name = folder + "/" + shard.info.file;
    const std::int64_t bytes = storage.open(name)->bytes();
    if (bytes != shard.info.bytes)
      throw base::checkpoint_error(fmt::format("{}: has {} bytes, {} were written; give all nodes one output directory",
                                               storage.path_of(name), bytes, shard.info.bytes));
  }
}

// The manifest into `folder`, on the disk when it returns. The result is the marker's content.
std::string write_manifest(Storage& storage, const std::string& folder, const TrainingState& state,
                           std::span<const WrittenShard> shards) {
  Manifest manifest{.state = state, .shards = {}, .slices = {}};
  for (std::size_t i = 0; i < shards.size(); ++i) {
    manifest.shards.push_back(shards[i].info);
    for (const TensorSlice& slice : shards[i].slices) manifest.slices.emplace_back(static_cast<int>(i), slice);
  }
  const std::string text = to_json(manifest);
  parse_manifest(text);  // what could not be read back must not be called a checkpoint
  storage.write(folder + "/" + kManifestFile, bytes_of(text));
  storage.sync_folder(folder);
  return xxh3_hex(bytes_of(text)) + "\n";
}

// A name that no other process takes, on any node that shares the directory.
std::string probe_name() {
  std::random_device random;
  return fmt::format("{}probe-{:08x}{:08x}", kPartialPrefix, random(), random());
}

void verify_shard(const Storage& storage, const ShardInfo& shard, std::span<const TensorSlice> slices,
                  std::vector<std::byte>& chunk) {
  const std::string path = storage.path_of(shard.file);
  const std::unique_ptr<StoredFile> file = storage.open(shard.file);
  if (file->bytes() != shard.bytes)
    throw base::checkpoint_error(
        fmt::format("{}: has {} bytes, the manifest says {}", path, file->bytes(), shard.bytes));
  Xxh3 hash;
  for (std::int64_t at = 0; at < shard.bytes;) {
    const std::span<std::byte> part = std::span(chunk).first(static_cast<std::size_t>(
        std::min<std::int64_t>(static_cast<std::int64_t>(chunk.size()), shard.bytes - at)));
    file->read(at, part);
    hash.update(part);
    at += static_cast<std::int64_t>(part.size());
  }
  if (hash.hex() != shard.xxh3)
    throw base::checkpoint_error(fmt::format("{}: is damaged: its checksum is {}, the manifest says {}", path,
                                             hash.hex(), shard.xxh3));
  check_shard(read_header(*file, path), slices, path);
}

}  // namespace

SafetensorsHeader read_header(const StoredFile& file, const std::string& path) {
  try {
    std::vector<std::byte> head(static_cast<std::size_t>(std::min<std::int64_t>(8, file.bytes())));
    file.read(0, head);
    head.resize(static_cast<std::size_t>(header_bytes(head, file.bytes())));
    file.read(0, head);
    return parse_safetensors(head, file.bytes());
  } catch (const base::CheckpointError& e) {
    throw base::checkpoint_error(path + ": " + e.what());
  }
}

Manifest read_manifest(const Storage& storage) {
  if (!storage.exists(kMarkerFile))
    throw base::checkpoint_error(storage.path_of(kMarkerFile) +
                                 ": is not there: the checkpoint was never completed");
  const std::string marker = read_text(storage, kMarkerFile), text = read_text(storage, kManifestFile);
  if (marker != xxh3_hex(bytes_of(text)) + "\n")
    throw base::checkpoint_error(storage.path_of(kManifestFile) +
                                 ": is damaged: its checksum is not the one in " + kMarkerFile);
  try {
    return parse_manifest(text);
  } catch (const base::CheckpointError& e) {
    throw base::checkpoint_error(storage.path_of(kManifestFile) + ": " + e.what());
  }
}

Manifest verify_checkpoint(const std::string& path) {
  const std::unique_ptr<Storage> storage = open_storage(path);
  Manifest manifest = read_manifest(*storage);
  std::vector<std::vector<TensorSlice>> slices(manifest.shards.size());
  for (const auto& [shard, slice] : manifest.slices) slices[static_cast<std::size_t>(shard)].push_back(slice);
  std::vector<std::byte> chunk(kChunkBytes);
  for (std::size_t i = 0; i < manifest.shards.size(); ++i)
    verify_shard(*storage, manifest.shards[i], slices[i], chunk);
  return manifest;
}

CheckpointStore::CheckpointStore(std::string directory, std::int64_t keep, std::string run)
    : directory_(std::move(directory)), keep_(keep), run_(std::move(run)) {
  base::check(keep >= 1, "a checkpoint store keeps at least one checkpoint");
  const std::unique_ptr<Storage> storage = open_storage(directory_);
  storage->make_folder("");
  // Found out now, not after an hour of training.
  const std::string probe = probe_name();
  storage->write(probe, {});
  storage->remove(probe);
}

std::string CheckpointStore::partial_name(std::int64_t step) const {
  return std::string(kPartialPrefix) + folder_name(step) + (run_.empty() ? "" : "-" + run_);
}

StoredCheckpoint CheckpointStore::write(const TrainingState& state, std::span<const ShardContent> shards) {
  const std::unique_ptr<Storage> storage = open_storage(directory_);
  storage->remove(partial_name(state.step));
  std::vector<WrittenShard> written;
  try {
    written = write_shards(state.step, 0, shards);
  } catch (...) {
    try {
      storage->remove(partial_name(state.step));
    } catch (const base::CheckpointError&) {  // goes with the next clean-up
    }
    throw;
  }
  return complete(state, written);
}

std::vector<WrittenShard> CheckpointStore::write_shards(std::int64_t step, std::int64_t first,
                                                        std::span<const ShardContent> shards) const {
  const std::unique_ptr<Storage> storage = open_storage(directory_);
  const std::string folder = partial_name(step);
  storage->make_folder(folder);
  std::vector<WrittenShard> written;
  for (const ShardContent& shard : shards) {
    const std::string file = shard_file(first + static_cast<std::int64_t>(written.size()));
    const auto bytes = static_cast<std::int64_t>(shard.bytes.size());
    check_shard(parse_safetensors(shard.bytes, bytes), shard.slices, file);
    storage->write(folder + "/" + file, shard.bytes);
    written.push_back({{file, bytes, xxh3_hex(shard.bytes)}, shard.slices});
  }
  storage->sync_folder(folder);
  return written;
}

StoredCheckpoint CheckpointStore::complete(const TrainingState& state, std::span<const WrittenShard> shards) const {
  const std::unique_ptr<Storage> storage = open_storage(directory_);
  const std::string name = folder_name(state.step), old = name + std::string(kReplaced);
  const std::string partial = partial_name(state.step);
  bool renamed = false;
  try {
    require_there(*storage, partial, shards);
    const std::string marker = write_manifest(*storage, partial, state, shards);
    if (storage->exists(name)) {
      // Kept under another name until its successor is complete; an ".old" that is still the only complete
      // one stays.
      if (is_complete(*storage, name)) {
        if (storage->exists(old)) remove_folder(*storage, old);
        storage->rename(name, old);
      } else {
        remove_folder(*storage, name);
      }
    }
    storage->rename(partial, name);
    renamed = true;
    storage->sync_folder("");
    // The marker appears with its content or not at all.
    const std::string aside = name + "/" + std::string(kPartialPrefix) + kMarkerFile;
    storage->write(aside, bytes_of(marker));
    storage->rename(aside, name + "/" + kMarkerFile);
    storage->sync_folder(name);
  } catch (...) {
    try {
      storage->remove(partial);
      if (renamed) remove_folder(*storage, name);
      if (!storage->exists(name) && storage->exists(old)) storage->rename(old, name);
    } catch (const base::CheckpointError&) {
      // The first error is the one to report; what is left has no marker and goes with the next clean-up.
    }
    throw;
  }
  clean_up(*storage, state.step, keep_, run_);
  return {state.step, storage->path_of(name)};
}

std::vector<StoredCheckpoint> CheckpointStore::list() const {
  const std::unique_ptr<Storage> storage = open_storage(directory_);
  std::vector<StoredCheckpoint> found;
  for (const Folder& folder : complete_folders(*storage))
    found.push_back({folder.step, storage->path_of(folder.name)});
  return found;
}

std::optional<CheckpointStore::Found> CheckpointStore::newest_valid(
    const std::function<void(const std::string&, const std::string&)>& rejected) const {
  const std::vector<StoredCheckpoint> candidates = list();
  for (const StoredCheckpoint& candidate : candidates) {
    try {
      return Found{candidate, verify_checkpoint(candidate.path)};
    } catch (const base::CheckpointError& e) {
      if (rejected) rejected(candidate.path, e.what());
    }
  }
  if (candidates.empty()) return std::nullopt;
  throw base::checkpoint_error(fmt::format(
      "{}: none of its {} checkpoints is whole; restore one, or remove the directory to start anew",
      directory_, candidates.size()));
}

}  // namespace trainerd::io
