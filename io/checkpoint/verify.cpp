#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/files.h"
#include "io/checkpoint/folders.h"
#include "io/hash/hash.h"
#include "io/storage/file_errors.h"
#include "io/storage/storage.h"
#include "kernels/base/error.h"

// Checks whether a checkpoint is valid and finds the newest valid one of a run. A file that cannot be read is
// an error and not damage: skipping a checkpoint because of a disk error would lead to its being overwritten.

namespace trainerd::io {
namespace {

// Returns the first of `slices` whose bytes do not match its checksum, with both checksums; empty if there is
// none.
std::string damaged_tensor(const StoredFile& file, const SafetensorsHeader& header,
                           std::span<const TensorSlice> slices) {
  std::map<std::string, const StoredTensor*> stored;  // because a header's find() is linear
  for (const StoredTensor& tensor : header.tensors) stored[tensor.name] = &tensor;
  std::vector<std::byte> chunk(kChunkBytes);
  for (const TensorSlice& slice : slices) {
    const auto found = stored.find(slice.stored_name());
    if (!slice.xxh3 || found == stored.end()) continue;
    Xxh3Of64 hash;
    for (std::int64_t at = found->second->begin; at < found->second->end;) {
      const std::span<std::byte> part = std::span(chunk).first(static_cast<std::size_t>(
          std::min<std::int64_t>(static_cast<std::int64_t>(chunk.size()), found->second->end - at)));
      file.read(header.data_offset + at, part);
      hash.update(part);
      at += static_cast<std::int64_t>(part.size());
    }
    if (hash.value() != *slice.xxh3)
      return fmt::format("{} (checksum {:016x}, the manifest says {:016x})", slice.name, hash.value(),
                         *slice.xxh3);
  }
  return "";
}

// Returns a text that names the damaged tensor of a shard, if it can be determined.
std::string damage_of(const StoredFile& file, const std::string& path, std::span<const TensorSlice> slices) {
  try {
    const std::string tensor = damaged_tensor(file, read_header(file, path), slices);
    return tensor.empty() ? "" : "; the damage is in " + tensor;
  } catch (const base::CheckpointError&) {
    return "; its header cannot be read";
  }
}

void verify_shard(const Storage& storage, const ShardInfo& shard, std::span<const TensorSlice> slices,
                  std::vector<std::byte>& chunk) {
  const std::string path = storage.path_of(shard.file);
  const std::unique_ptr<StoredFile> file = storage.open(shard.file);
  if (file->bytes() != shard.bytes)
    throw base::checkpoint_error(
        fmt::format("{}: has {} bytes, the manifest says {}", path, file->bytes(), shard.bytes));
  if (const std::string checksum = checksum_of(*file, chunk); checksum != shard.xxh3)
    throw base::checkpoint_error(fmt::format("{}: is damaged: its checksum is {}, the manifest says {}{}",
                                             path, checksum, shard.xxh3, damage_of(*file, path, slices)));
  check_shard(read_header(*file, path), slices, path);
}

}  // namespace

std::string checksum_of(const StoredFile& file, std::span<std::byte> chunk) {
  Xxh3 hash;
  for (std::int64_t at = 0; at < file.bytes();) {
    const std::span<std::byte> part = chunk.first(static_cast<std::size_t>(
        std::min<std::int64_t>(static_cast<std::int64_t>(chunk.size()), file.bytes() - at)));
    file.read(at, part);
    hash.update(part);
    at += static_cast<std::int64_t>(part.size());
  }
  return hash.hex();
}

SafetensorsHeader read_header(const StoredFile& file, const std::string& path) {
  try {
    std::vector<std::byte> head(static_cast<std::size_t>(std::min<std::int64_t>(8, file.bytes())));
    file.read(0, head);
    head.resize(static_cast<std::size_t>(header_bytes(head, file.bytes())));
    file.read(0, head);
    return parse_safetensors(head, file.bytes());
  } catch (const StorageError&) {
    throw;
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

Manifest verify_checkpoint(const std::string& path, const OpenRemote& remote) {
  return verify_checkpoint(*open_storage(path, remote));
}

Manifest verify_checkpoint(const Storage& storage) {
  Manifest manifest = read_manifest(storage);
  std::vector<std::vector<TensorSlice>> slices(manifest.shards.size());
  for (const auto& [shard, slice] : manifest.slices) slices[static_cast<std::size_t>(shard)].push_back(slice);
  std::vector<std::byte> chunk(kChunkBytes);
  for (std::size_t i = 0; i < manifest.shards.size(); ++i)
    verify_shard(storage, manifest.shards[i], slices[i], chunk);
  return manifest;
}

std::vector<StoredCheckpoint> CheckpointStore::list_attempts() const {
  std::vector<StoredCheckpoint> found;
  for (const Folder& folder : folders_of(*storage_).complete)
    found.push_back({folder.step, storage_->path_of(folder.name), folder.good});
  return found;
}

std::vector<StoredCheckpoint> CheckpointStore::list() const {
  std::vector<StoredCheckpoint> found = list_attempts();
  const auto same_step = [](const auto& a, const auto& b) { return a.step == b.step; };
  found.erase(std::unique(found.begin(), found.end(), same_step), found.end());
  return found;
}

std::vector<StoredCheckpoint> CheckpointStore::incomplete() const {
  const Folders folders = folders_of(*storage_);
  std::vector<StoredCheckpoint> found;
  for (const Folder& folder : folders.incomplete)
    if (std::none_of(folders.complete.begin(), folders.complete.end(),
                     [&](const Folder& other) { return other.step == folder.step; }))
      found.push_back({folder.step, storage_->path_of(folder.name)});
  return found;
}

std::vector<StoredCheckpoint> list_checkpoints(const std::string& directory, const OpenRemote& remote) {
  return CheckpointStore(open_storage(directory, remote), {}).list();
}

std::vector<StoredCheckpoint> list_incomplete(const std::string& directory, const OpenRemote& remote) {
  return CheckpointStore(open_storage(directory, remote), {}).incomplete();
}

std::optional<CheckpointStore::Found> CheckpointStore::newest_valid(
    const std::function<void(const std::string&, const std::string&)>& rejected) const {
  const std::vector<StoredCheckpoint> candidates = list_attempts();
  for (const StoredCheckpoint& candidate : candidates) {
    try {
      return Found{candidate, verify_checkpoint(*folder(candidate.name()))};
    } catch (const StorageError& e) {
      if (!is_absence(e.error_number))
        throw base::checkpoint_error(fmt::format(
            "{}; the newest checkpoint is not replaced by an older one for an error of the file system",
            e.what()));
      if (rejected) rejected(candidate.path, e.what());
    } catch (const base::CheckpointError& e) {
      if (rejected) rejected(candidate.path, e.what());
    }
  }
  if (candidates.empty()) return std::nullopt;
  throw base::checkpoint_error(
      fmt::format("{}: none of its {} checkpoints is whole; restore one, or begin anew with --fresh, which "
                  "moves the output aside",
                  storage_->path_of(""), candidates.size()));
}

}  // namespace trainerd::io
