#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <random>
#include <utility>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/files.h"
#include "io/checkpoint/folders.h"
#include "io/hash/hash.h"
#include "io/storage/file_errors.h"
#include "io/storage/storage.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

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

// What a clean-up could not do; the rest of it goes on.
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

// Removes the leftovers of kills, and complete checkpoints beyond the newest `keep` up to `step`. Later steps
// are damaged ones that a resume passed over: they are left to be looked at, until training reaches their
// step again. When a folder cannot be looked at nothing is removed. The first problem; empty: none.
std::string clean_up(Storage& storage, std::int64_t step, std::int64_t keep, const std::string& run) {
  Problems problems;
  problems.attempt([&] {
    std::vector<std::string> kept;
    std::int64_t counted = 0;
    for (const Folder& folder : folders_of(storage).complete)
      if (folder.step > step || counted++ < keep) kept.push_back(folder.name);
    for (const std::string& name : storage.list("")) {
      if (name.starts_with(kPartialPrefix) && !is_under_way(name, step, run))
        problems.attempt([&] { storage.remove(name); });
      if (parse_folder(name) && std::find(kept.begin(), kept.end(), name) == kept.end())
        problems.attempt([&] { remove_folder(storage, name); });
    }
    storage.sync_folder("");
  });
  return problems.first();
}

std::string shard_file(std::int64_t rank) { return fmt::format("shard-{:05}.safetensors", rank); }

// Other nodes wrote some of them: what one of them calls written must be what is here.
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
  parse_manifest(text);  // what could not be read back must not be called a checkpoint
  return text;
}

// A name that no other process takes, on any node that shares the directory.
std::string probe_name() {
  std::random_device random;
  return fmt::format("{}probe-{:08x}{:08x}", kPartialPrefix, random(), random());
}

}  // namespace

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

std::string CheckpointStore::collect_partial() const {
  const std::unique_ptr<Storage> storage = open_storage(directory_);
  Problems problems;
  problems.attempt([&] {
    for (const std::string& name : storage->list(""))
      if (name.starts_with(kPartialPrefix)) problems.attempt([&] { storage->remove(name); });
  });
  return problems.first();
}

std::string CheckpointStore::partial_name(std::int64_t step) const {
  return std::string(kPartialPrefix) + folder_name(step) + (run_.empty() ? "" : "-" + run_);
}

StoredCheckpoint CheckpointStore::write(const TrainingState& state, std::span<const ShardContent> shards) {
  const std::unique_ptr<Storage> storage = open_storage(directory_);
  storage->remove(partial_name(state.step));
  try {
    return complete(state, write_shards(state.step, 0, shards));
  } catch (...) {
    try {
      storage->remove(partial_name(state.step));
    } catch (const base::CheckpointError&) {  // goes with the next clean-up
    }
    throw;
  }
}

std::vector<WrittenShard> CheckpointStore::write_shards(std::int64_t step, std::int64_t first,
                                                        std::span<const ShardContent> shards) const {
  const std::unique_ptr<Storage> storage = open_storage(directory_);
  const std::string folder = partial_name(step);
  storage->make_folder(folder);
  std::vector<WrittenShard> written;
  std::string name;
  try {
    for (const ShardContent& shard : shards) {
      const std::string file = shard_file(first + static_cast<std::int64_t>(written.size()));
      const auto bytes = static_cast<std::int64_t>(shard.bytes.size());
      const SafetensorsHeader header = parse_safetensors(shard.bytes, bytes);
      check_shard(header, shard.slices, file);
      name = folder + "/" + file;
      storage->remove(name);  // of a try that failed
      storage->write(name, shard.bytes);
      written.push_back({{file, bytes, xxh3_hex(shard.bytes)}, with_checksums(shard, header)});
    }
    storage->sync_folder(folder);
  } catch (...) {
    // The room may be what the disk lacks.
    Problems ignored;
    for (const WrittenShard& shard : written)
      ignored.attempt([&] { storage->remove(folder + "/" + shard.info.file); });
    if (!name.empty()) ignored.attempt([&] { storage->remove(name); });
    throw;
  }
  return written;
}

void CheckpointStore::discard(std::int64_t step) const {
  Problems ignored;  // it goes with the next clean-up
  ignored.attempt([&] { open_storage(directory_)->remove(partial_name(step)); });
}

StoredCheckpoint CheckpointStore::complete(const TrainingState& state,
                                           std::span<const WrittenShard> shards) const {
  const std::unique_ptr<Storage> storage = open_storage(directory_);
  const std::string name = folder_name(state.step), old = name + std::string(kReplaced);
  const std::string partial = partial_name(state.step);
  const std::string aside = std::string(kPartialPrefix) + kMarkerFile;
  const std::string manifest = manifest_text(state, shards), marker = xxh3_hex(bytes_of(manifest)) + "\n";
  // A try that failed may have left it under its last name, with or without its last files.
  if (!storage->exists(partial) && storage->exists(name)) {
    if (!is_complete(*storage, name)) {
      storage->rename(name, partial);
    } else if (read_text(*storage, name + "/" + kMarkerFile) == marker) {
      storage->sync_folder(name);
      return {state.step, storage->path_of(name), clean_up(*storage, state.step, keep_, run_)};
    }
  }
  for (const std::string& file : {std::string(kMarkerFile), aside, std::string(kManifestFile)})
    storage->remove(partial + "/" + file);
  bool renamed = false;
  try {
    require_there(*storage, partial, shards);
    storage->write(partial + "/" + kManifestFile, bytes_of(manifest));
    storage->sync_folder(partial);
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
    storage->write(name + "/" + aside, bytes_of(marker));
    storage->rename(name + "/" + aside, name + "/" + kMarkerFile);
    storage->sync_folder(name);
  } catch (...) {
    // The shards stay under the name of an unfinished checkpoint: the next try completes them.
    try {
      if (renamed) storage->rename(name, partial);
      if (!storage->exists(name) && storage->exists(old)) storage->rename(old, name);
    } catch (const base::CheckpointError&) {
      // The first error is the one to report.
    }
    throw;
  }
  return {state.step, storage->path_of(name), clean_up(*storage, state.step, keep_, run_)};
}

std::vector<StoredCheckpoint> CheckpointStore::list() const { return list_checkpoints(directory_); }

std::vector<StoredCheckpoint> CheckpointStore::incomplete() const { return list_incomplete(directory_); }

}  // namespace trainerd::io
