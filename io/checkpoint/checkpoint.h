#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/checkpoint/retention.h"
#include "io/checkpoint/safetensors.h"
#include "io/storage/storage.h"
#include "kernels/tensor/dtype.h"

namespace trainerd::io {

/// A box of a logical tensor that one shard holds: `begin` and `shape` in global coordinates.
struct TensorSlice {
  std::string name;
  kernels::DType dtype = kernels::DType::f32;
  std::vector<std::int64_t> logical_shape;
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> shape;
  /// Its name in the shard's file, if it differs from `name`: a shard may hold several boxes of one tensor.
  std::string stored = {};
  /// 64-bit XXH3 of its bytes in that file. Absent if it is in no file, and in checkpoints of older versions.
  std::optional<std::uint64_t> xxh3 = {};

  const std::string& stored_name() const { return stored.empty() ? name : stored; }
};

/// State of one data source of a run.
struct SourceState {
  std::string name = {};  ///< its paths, for display
  // Identity of the source and its share of the blend, compared on resume.
  std::string files = {};    ///< file names and sizes
  std::string content = {};  ///< hash of samples of the files; empty: not known
  double weight = 1;         ///< 0: the job no longer names it
  std::int64_t limit = -1;   ///< most samples that the run takes from it; -1: no limit
  std::int64_t stream = 0;   ///< stream of its order of samples
  std::int64_t before = 0;   ///< samples taken from it before the present order began
  std::int64_t taken = 0;    ///< samples taken in all

  bool operator==(const SourceState&) const = default;
};

/// Position of a run. With the tensors it is everything that a resumed run needs.
struct TrainingState {
  std::int64_t step = 0;    ///< steps done
  std::int64_t cursor = 0;  ///< samples consumed, which is the data position
  std::int64_t tokens = 0;
  std::uint64_t seed = 0;  ///< all random numbers depend on it and on positions: no other RNG state
  /// Compared on resume; a run with a difference is refused, naming the key: model shape, data fingerprint,
  /// precision, optimizer.
  std::map<std::string, std::string> identity;
  /// Recorded to judge bit-for-bit equality: instruction set, threads, library versions, layout.
  std::map<std::string, std::string> environment;
  // When the data is replaced or blended anew in mid-run, a new order of samples begins. These are the cursor
  // at which it began and the stream of its first source.
  std::int64_t order_start = 0;
  std::int64_t order_stream = 0;
  std::vector<SourceState> sources = {};  ///< in the job's order, then those that the job no longer names;
                                          ///< empty in checkpoints of older versions, which had one source
  std::string job = {};     ///< the resolved job, so that a resumed run can list the changes; empty in
                            ///< checkpoints of older versions
  std::string origin = {};  ///< source of the weights, as core/hf writes it; empty: initialised from seed
};

struct ShardInfo {
  std::string file;
  std::int64_t bytes = 0;
  std::string xxh3;  ///< 128-bit XXH3 of the whole file, hex
};

struct Manifest {
  TrainingState state;
  std::vector<ShardInfo> shards;
  std::vector<std::pair<int, TensorSlice>> slices;  ///< shard index, box
};

/// One rank's contribution: the bytes of a whole safetensors file and the boxes of its tensors.
struct ShardContent {
  std::span<const std::byte> bytes;
  std::vector<TensorSlice> slices;
};

/// A shard that is on disk while its checkpoint is still incomplete.
struct WrittenShard {
  ShardInfo info;
  std::vector<TensorSlice> slices;
};

/// Converts a manifest to JSON text and back. `parse_manifest` throws CheckpointError for malformed or
/// inconsistent text (slices outside their tensors, an unknown shard, a future version).
std::string to_json(const Manifest& manifest);
Manifest parse_manifest(const std::string& text);
/// The same text, from shards in rank order.
std::string to_json(const TrainingState& state, std::span<const WrittenShard> shards);

struct StoredCheckpoint {
  std::int64_t step = 0;
  std::string path;
  bool good = false;           ///< tagged as good: the losses after it stayed normal
  std::string left_over = {};  ///< why older checkpoints could not be removed after a write; else empty

  /// Name of its folder: "step-00000010".
  std::string name() const { return path.substr(path.rfind('/') + 1); }
};

/// Checks that a shard's file holds exactly the tensors of `slices`. Throws CheckpointError naming the
/// tensor.
void check_shard(const SafetensorsHeader& header, std::span<const TensorSlice> slices,
                 const std::string& file);

/// Folders that must not be removed: they are being read, or the run may need them. Thread-safe.
class PinnedFolders {
 public:
  void pin(const std::string& folder);
  /// From now on each checkpoint is pinned as it becomes complete, before older ones are removed.
  void pin_new();
  void completed(const std::string& folder);
  void unpin(const std::string& folder);
  bool has(const std::string& folder) const;

 private:
  mutable std::mutex mutex_;
  std::multiset<std::string> folders_;
  bool pins_new_ = false;
};

/// The checkpoints of one run, each in a folder of a storage. Shards and manifest are written under their
/// final names; COMPLETE is written after all of them are durable. There is no rename, so local disks and
/// object stores work alike. A folder without COMPLETE is ignored, and a checkpoint that is removed loses
/// COMPLETE first. So a kill at any moment leaves all earlier checkpoints intact. A step that is saved again
/// gets a folder for its new attempt; the older attempt is removed when the new one is complete.
class CheckpointStore {
 public:
  /// Makes the directory if needed. `read_back`: every shard is read and compared after it was written.
  /// Throws CheckpointError if the directory cannot be written.
  CheckpointStore(const std::string& directory, std::int64_t keep, std::int64_t keep_every = 0,
                  bool read_back = false);
  /// Does not access the storage.
  CheckpointStore(std::shared_ptr<Storage> storage, Retention retention, bool read_back = false)
      : storage_(std::move(storage)), retention_(retention), read_back_(read_back) {}

  /// Removes incomplete files that kills left. Call it at the start of a run that has the directory to
  /// itself. Returns the first problem; empty if there was none.
  std::string collect_partial() const;

  /// Returns the next free attempt number of a step, judged by the existing folders.
  std::int64_t next_attempt(std::int64_t step) const;
  /// The same for all steps that have a folder.
  std::map<std::int64_t, std::int64_t> next_attempts() const;

  /// Hashes, writes and completes a checkpoint. Then removes old checkpoints by the retention rules and
  /// leftovers of kills; a removal that fails is repeated by the next call. On an error (such as a full disk)
  /// it removes what it wrote and throws CheckpointError; after a StorageError the caller may retry. The
  /// attempt is at least `least_attempt`, since another host may still write to earlier ones that are not
  /// visible here.
  StoredCheckpoint write(const TrainingState& state, std::span<const ShardContent> shards,
                         std::int64_t least_attempt = 1, const Wanted& wanted = {});

  // The same in two parts, for nodes that share the directory. Each node writes its shards (ranks from
  // `first` on), and one completes the checkpoint with the shards of all, in rank order. All agree on the
  // attempt. Later steps may be written meanwhile. After a StorageError either part can be retried.
  std::vector<WrittenShard> write_shards(std::int64_t step, std::int64_t attempt, std::int64_t first,
                                         std::span<const ShardContent> shards,
                                         const Wanted& wanted = {}) const;
  StoredCheckpoint complete(const TrainingState& state, std::int64_t attempt,
                            std::span<const WrittenShard> shards) const;

  // The same for a copy of a checkpoint, file by file. Files of an interrupted copy are not written again. A
  // complete checkpoint of this name loses its marker first.
  /// Returns the number of bytes written.
  std::int64_t copy_shard(const std::string& folder, const std::string& file, const StoredFile& from,
                          const Pace& pace) const;
  StoredCheckpoint complete_copy(const std::string& folder, const std::string& manifest) const;

  /// Removes the files of a checkpoint that will not be completed. A complete one is kept.
  void discard(std::int64_t step, std::int64_t attempt) const;

  /// Tags the complete checkpoint of a step as good. Returns false if there is none.
  bool tag_good(std::int64_t step) const;

  /// Removes the marker of a complete checkpoint, so that it is no longer used. Its files are kept for
  /// inspection.
  void withdraw(const std::string& name) const;

  /// Folders that are not removed while they are read.
  PinnedFolders& pinned() const { return *pinned_; }
  /// Returns the files of one checkpoint.
  std::shared_ptr<Storage> folder(const std::string& name) const;
  const std::shared_ptr<Storage>& storage() const { return storage_; }

  /// Lists complete checkpoints, newest first, with the newest attempt of each step. Throws StorageError if
  /// one cannot be accessed.
  std::vector<StoredCheckpoint> list() const;
  /// The same with all attempts.
  std::vector<StoredCheckpoint> list_attempts() const;
  /// Lists checkpoints without a marker, of steps that have no complete one, newest first.
  std::vector<StoredCheckpoint> incomplete() const;

  struct Found {
    StoredCheckpoint where;
    Manifest manifest;
  };
  /// Returns the newest valid checkpoint: every shard exists with its size and checksum. Reports each invalid
  /// one through `rejected(path, why)` and tries the next. Empty if there are no checkpoints. Throws
  /// CheckpointError if there are some but none is valid, or if one cannot be read, because that does not
  /// prove damage.
  std::optional<Found> newest_valid(
      const std::function<void(const std::string& path, const std::string& why)>& rejected) const;

 private:
  void mark(const std::string& name, const std::string& manifest, std::span<const WrittenShard> shards) const;
  std::shared_ptr<Storage> storage_;
  Retention retention_;
  bool read_back_ = false;
  std::shared_ptr<PinnedFolders> pinned_ = std::make_shared<PinnedFolders>();
};

/// Lists the complete checkpoints in a directory, or those without a marker, newest first. Writes nothing.
std::vector<StoredCheckpoint> list_checkpoints(const std::string& directory, const OpenRemote& remote = {});
std::vector<StoredCheckpoint> list_incomplete(const std::string& directory, const OpenRemote& remote = {});

/// Reads and checks one checkpoint. Throws CheckpointError naming the file and what is wrong with it.
Manifest verify_checkpoint(const std::string& path, const OpenRemote& remote = {});
/// The same for the checkpoint at the storage's root.
Manifest verify_checkpoint(const Storage& storage);

/// Returns true if every element of `box` lies in a box of `held`. All are boxes of the same tensor.
bool covers(std::span<const TensorSlice> held, const TensorSlice& box);
/// Whether the two are of one tensor and have an element in common.
bool overlap(const TensorSlice& a, const TensorSlice& b);

/// Reads boxes of logical tensors from a checkpoint of any layout. Reads only the bytes that it needs.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::string& path, const OpenRemote& remote = {});
  /// Reads from shards in memory, which must outlive this. `name` is for messages.
  CheckpointReader(std::string name, std::span<const ShardContent> shards);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;
  const Manifest& manifest() const;
  /// True if a shard has boxes of this tensor.
  bool holds(const std::string& tensor) const;
  /// Fills `out` with the box, row-major. Throws CheckpointError: no such tensor, another dtype or logical
  /// shape, a part that no shard holds, a short read.
  void read(const TensorSlice& box, std::span<std::byte> out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
