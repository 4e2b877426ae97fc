#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <future>
#include <map>
#include <random>
#include <utility>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/files.h"
#include "io/checkpoint/folders.h"
#include "io/hash/hash.h"
#include "io/storage/file_errors.h"
#include "io/storage/storage.h"
#include "io/storage/subfolder.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

// In other threads; where none can be started, when the result is asked for.
constexpr std::launch kMeanwhile = std::launch::async | std::launch::deferred;

// Removes the marker first, so a checkpoint that is being removed never looks complete with half its files
// gone.
void remove_folder(Storage& storage, const std::string& name) {
  const std::string marker = name + "/" + kMarkerFile;
  if (storage.exists(marker)) {
    storage.remove(marker);
    storage.sync_folder(name);
  }
  storage.remove(name);
}

// Runs clean-up actions. A failed one does not stop the others; the first problem is kept.
class Problems {
 public:
  void attempt(const std::function<void()>& action) {
    try {
      action();
    } catch (const base::CheckpointError& e) {
      if (first_.empty()) first_ = e.what();
    }
  }
  const std::string& first() const { return first_; }

 private:
  std::string first_;
};

// Returns the folders to remove once that of `step` is complete: older attempts, what the retention rules
// drop, and leftovers of kills up to this step. Later steps are kept: other nodes are writing them, or a
// resume skipped them as damaged. They stay for inspection until training reaches their step again.
std::vector<std::string> folders_to_remove(const Folders& folders, std::int64_t step,
                                           const Retention& retention) {
  std::vector<std::string> names;
  std::vector<Folder> newest;  // newest attempt per step
  std::vector<Retained> candidates;
  for (const Folder& folder : folders.complete) {
    if (folder.step > step) continue;
    if (!newest.empty() && newest.back().step == folder.step) {
      names.push_back(folder.name);
    } else {
      newest.push_back(folder);
      candidates.push_back({folder.step, folder.good});
    }
  }
  const std::vector<bool> stays = retained(candidates, retention);
  for (std::size_t i = 0; i < newest.size(); ++i)
    if (!stays[i]) names.push_back(newest[i].name);
  for (const Folder& folder : folders.incomplete)
    if (folder.step <= step) names.push_back(folder.name);
  return names;
}

// Removes nothing if a folder cannot be accessed. Returns the first problem; empty if there was none.
std::string clean_up(Storage& storage, std::int64_t step, const Retention& retention,
                     const PinnedFolders& pinned) {
  Problems problems;
  problems.attempt([&] {
    for (const std::string& name : folders_to_remove(folders_of(storage), step, retention))
      if (!pinned.has(name)) problems.attempt([&] { remove_folder(storage, name); });
    for (const std::string& name : storage.list(""))
      if (name.starts_with(kPartialPrefix)) problems.attempt([&] { storage.remove(name); });
    storage.sync_folder("");
  });
  return problems.first();
}

// Returns true if it is already complete with this manifest.
bool is_marked(const Storage& storage, const std::string& folder, const std::string& marker) {
  try {
    return is_complete(storage, folder) && read_text(storage, folder + "/" + kMarkerFile) == marker;
  } catch (const StorageError&) {
    throw;
  } catch (const base::CheckpointError&) {
    return false;  // something else has this name
  }
}

// Compares what the storage returns with what was written. After a difference a retry may succeed.
void require_stored(const Storage& storage, const std::string& name, const ShardInfo& shard) {
  const std::unique_ptr<StoredFile> file = storage.open(name);
  file->forget_cached();
  std::vector<std::byte> chunk(kChunkBytes);
  std::string checksum;
  try {
    checksum = checksum_of(*file, chunk);
  } catch (const StorageError&) {
    throw;
  } catch (const base::CheckpointError& error) {
    throw StorageError(fmt::format("what was written cannot be read back: {}", error.what()), EIO);
  }
  if (file->bytes() != shard.bytes || checksum != shard.xxh3)
    throw StorageError(fmt::format("{}: what is read back is not what was written: its checksum is {}, that "
                                   "of the bytes written {}",
                                   storage.path_of(name), checksum, shard.xxh3),
                       EIO);
}

// Checks that shards written by other nodes are visible here with the size that those nodes reported.
void require_there(const Storage& storage, const std::string& folder, std::span<const WrittenShard> shards) {
  for (const WrittenShard& shard : shards) {
    const std::string name = folder + "/" + shard.info.file;
    const std::int64_t bytes = storage.open(name)->bytes();
    // A shared file system may show another node's file late.
    if (bytes != shard.info.bytes)
      throw StorageError(fmt::format("{}: has {} bytes, {} were written; give all nodes one output directory",
                                     storage.path_of(name), bytes, shard.info.bytes),
                         ESTALE);
  }
}

std::vector<TensorSlice> with_checksums(const ShardContent& shard, const SafetensorsHeader& header) {
  std::map<std::string, const StoredTensor*> stored;
  for (const StoredTensor& tensor : header.tensors) stored[tensor.name] = &tensor;
  std::vector<TensorSlice> slices = shard.slices;
  for (TensorSlice& slice : slices) {
    const StoredTensor& tensor = *stored.at(slice.stored_name());
    slice.xxh3 = xxh3_64(shard.bytes.subspan(static_cast<std::size_t>(header.data_offset + tensor.begin),
                                             static_cast<std::size_t>(tensor.end - tensor.begin)));
  }
  return slices;
}

std::string manifest_text(const TrainingState& state, std::span<const WrittenShard> shards) {
  std::string text = to_json(state, shards);
  parse_manifest(text);  // a checkpoint that cannot be read back must not be completed
  return text;
}

// Returns a name that no other process uses, on any node that shares the directory.
std::string probe_name() {
  std::random_device random;
  return fmt::format("{}probe-{:08x}{:08x}", kPartialPrefix, random(), random());
}

}  // namespace

std::string shard_file(std::int64_t rank) { return fmt::format("shard-{:05}.safetensors", rank); }

void PinnedFolders::pin(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  folders_.insert(folder);
}

void PinnedFolders::pin_new() {
  const std::lock_guard lock(mutex_);
  pins_new_ = true;
}

void PinnedFolders::completed(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  if (pins_new_) folders_.insert(folder);
}

void PinnedFolders::unpin(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  if (const auto found = folders_.find(folder); found != folders_.end()) folders_.erase(found);
}

bool PinnedFolders::has(const std::string& folder) const {
  const std::lock_guard lock(mutex_);
  return folders_.contains(folder);
}

CheckpointStore::CheckpointStore(const std::string& directory, std::int64_t keep, std::int64_t keep_every,
                                 bool read_back)
    : CheckpointStore(open_storage(directory), {.keep = keep, .keep_every = keep_every}, read_back) {
  base::check(keep >= 1, "a checkpoint store keeps at least one checkpoint");
  storage_->make_folder("");
  // Finds an unwritable directory now, not after an hour of training.
  const std::string probe = probe_name();
  storage_->write(probe, {});
  storage_->remove(probe);
}

std::string CheckpointStore::collect_partial() const {
  Problems problems;
  problems.attempt([&] {
    for (const std::string& name : storage_->list(""))
      if (name.starts_with(kPartialPrefix)) problems.attempt([&] { storage_->remove(name); });
    // One with a manifest may have lost its marker in another way, so it is kept for inspection.
    for (const Folder& folder : folders_of(*storage_).incomplete)
      problems.attempt([&] {
        if (!storage_->exists(folder.name + "/" + kManifestFile)) storage_->remove(folder.name);
      });
  });
  return problems.first();
}

std::map<std::int64_t, std::int64_t> CheckpointStore::next_attempts() const {
  std::map<std::int64_t, std::int64_t> next;
  for (const std::string& name : storage_->list(""))
    if (const std::optional<Folder> folder = parse_folder(name); folder && folder->attempt > 0)
      next[folder->step] = std::max(next[folder->step], folder->attempt + 1);
  return next;
}

std::int64_t CheckpointStore::next_attempt(std::int64_t step) const {
  const std::map<std::int64_t, std::int64_t> next = next_attempts();
  const auto found = next.find(step);
  return found == next.end() ? 1 : found->second;
}

StoredCheckpoint CheckpointStore::write(const TrainingState& state, std::span<const ShardContent> shards,
                                        std::int64_t least_attempt, const Wanted& wanted) {
  const std::int64_t attempt = std::max(next_attempt(state.step), least_attempt);
  try {
    return complete(state, attempt, write_shards(state.step, attempt, 0, shards, wanted));
  } catch (...) {
    Problems ignored;  // the next clean-up removes it
    ignored.attempt([&] { remove_folder(*storage_, folder_name(state.step, attempt)); });
    throw;
  }
}

std::vector<WrittenShard> CheckpointStore::write_shards(std::int64_t step, std::int64_t attempt,
                                                        std::int64_t first,
                                                        std::span<const ShardContent> shards,
                                                        const Wanted& wanted) const {
  const std::string folder = folder_name(step, attempt);
  if (is_complete(*storage_, folder))
    throw base::checkpoint_error(storage_->path_of(folder) + ": is complete, and not written again");
  storage_->make_folder(folder);
  std::vector<WrittenShard> written;
  std::string name;
  try {
    for (const ShardContent& shard : shards) {
      const std::string file = shard_file(first + static_cast<std::int64_t>(written.size()));
      const auto bytes = static_cast<std::int64_t>(shard.bytes.size());
      const SafetensorsHeader header = parse_safetensors(shard.bytes, bytes);
      check_shard(header, shard.slices, file);
      name = folder + "/" + file;
      storage_->remove(name);  // left by a failed attempt
      auto checksum = std::async(kMeanwhile, [&] { return xxh3_hex(shard.bytes); });  // meanwhile
      auto slices = std::async(kMeanwhile, [&] { return with_checksums(shard, header); });
      storage_->write(name, shard.bytes, wanted);
      written.push_back({{file, bytes, checksum.get()}, slices.get()});
      if (read_back_) require_stored(*storage_, name, written.back().info);
    }
    storage_->sync_folder(folder);
    storage_->sync_folder("");
  } catch (...) {
    // These files may be what fills the disk.
    Problems ignored;
    for (const WrittenShard& shard : written)
      ignored.attempt([&] { storage_->remove(folder + "/" + shard.info.file); });
    if (!name.empty()) ignored.attempt([&] { storage_->remove(name); });
    throw;
  }
  return written;
}

bool CheckpointStore::tag_good(std::int64_t step) const {
  for (const Folder& folder : folders_of(*storage_).complete) {
    if (folder.step != step) continue;
    if (!folder.good) {
      storage_->write(folder.name + "/" + kGoodFile, {});
      storage_->sync_folder(folder.name);
    }
    return true;
  }
  return false;
}

void CheckpointStore::discard(std::int64_t step, std::int64_t attempt) const {
  Problems ignored;  // the next clean-up removes it
  ignored.attempt([&] {
    const std::string name = folder_name(step, attempt);
    if (!is_complete(*storage_, name)) remove_folder(*storage_, name);
  });
}

StoredCheckpoint CheckpointStore::complete(const TrainingState& state, std::int64_t attempt,
                                           std::span<const WrittenShard> shards) const {
  const std::string name = folder_name(state.step, attempt);
  mark(name, manifest_text(state, shards), shards);
  pinned_->completed(name);
  return {state.step, storage_->path_of(name), false, clean_up(*storage_, state.step, retention_, *pinned_)};
}

// Can be called again after an attempt with unknown outcome: a completed checkpoint is left unchanged.
void CheckpointStore::mark(const std::string& name, const std::string& manifest,
                           std::span<const WrittenShard> shards) const {
  const std::string marker = xxh3_hex(bytes_of(manifest)) + "\n";
  const std::string marker_file = name + "/" + kMarkerFile, manifest_file = name + "/" + kManifestFile;
  if (is_marked(*storage_, name, marker)) return storage_->sync_folder(name);
  storage_->remove(marker_file);
  storage_->remove(manifest_file);
  require_there(*storage_, name, shards);
  storage_->write(manifest_file, bytes_of(manifest));
  storage_->sync_folder(name);
  storage_->sync_folder("");
  try {
    storage_->write(marker_file, bytes_of(marker));
    storage_->sync_folder(name);
  } catch (...) {
    // The shards stay for the next attempt. A marker that may not be durable must not remain.
    Problems ignored;
    ignored.attempt([&] { storage_->remove(marker_file); });
    throw;
  }
}

std::int64_t CheckpointStore::copy_shard(const std::string& folder, const std::string& file,
                                         const StoredFile& from, const Pace& pace) const {
  if (is_complete(*storage_, folder)) {
    storage_->remove(folder + "/" + kMarkerFile);
    storage_->sync_folder(folder);
  }
  storage_->make_folder(folder);
  const std::int64_t written = storage_->copy(folder + "/" + file, from, pace);
  storage_->sync_folder(folder);
  return written;
}

StoredCheckpoint CheckpointStore::complete_copy(const std::string& folder,
                                                const std::string& manifest) const {
  const Manifest parsed = parse_manifest(manifest);
  std::vector<WrittenShard> shards;
  for (const ShardInfo& shard : parsed.shards) shards.push_back({shard, {}});
  mark(folder, manifest, shards);
  return {parsed.state.step, storage_->path_of(folder), false,
          clean_up(*storage_, parsed.state.step, retention_, *pinned_)};
}

void CheckpointStore::withdraw(const std::string& name) const {
  storage_->remove(name + "/" + kMarkerFile);
  storage_->sync_folder(name);
}

std::shared_ptr<Storage> CheckpointStore::folder(const std::string& name) const {
  return std::make_shared<Subfolder>(storage_, name);
}

}  // namespace trainerd::io
