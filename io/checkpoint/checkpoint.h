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
  /// Its name in the shard's file when that is not `name`: a shard may hold several boxes of one tensor.
  std::string stored = {};
  /// 64-bit XXH3 of its bytes in that file; absent of what no file holds, and in checkpoints of older
  /// versions.
  std::optional<std::uint64_t> xxh3 = {};

  const std::string& stored_name() const { return stored.empty() ? name : stored; }
};

/// What a run has taken of one source of its data.
struct SourceState {
  std::string name = {};  ///< its paths, for people
  // What it is, and how much of it the blend takes: compared on resume.
  std::string files = {};    ///< names and sizes of its files
  std::string content = {};  ///< of samples of them; empty: not known
  double weight = 1;         ///< 0: the job names it no more
  std::int64_t limit = -1;   ///< samples that the run takes of it at most; -1: any number
  std::int64_t stream = 0;   ///< the number of its order of samples
  std::int64_t before = 0;   ///< samples taken of it before the present order began
  std::int64_t taken = 0;    ///< in all

  bool operator==(const SourceState&) const = default;
};

/// Where training stands; with the tensors it is all that a resumed run needs.
struct TrainingState {
  std::int64_t step = 0;    ///< steps done
  std::int64_t cursor = 0;  ///< samples consumed: the data position
  std::int64_t tokens = 0;
  std::uint64_t seed = 0;  ///< all randomness is a function of it and of positions: the RNG's whole state
  /// Compared on resume; a difference is refused by name: model shape, data fingerprint, precision,
  /// optimizer.
  std::map<std::string, std::string> identity;
  /// Recorded so that "bit for bit" can be judged: instruction set, threads, library versions, layout.
  std::map<std::string, std::string> environment;
  // Data that was replaced or blended anew in mid-run has an order of samples of its own: the cursor at which
  // it began, and the number of its first source's.
  std::int64_t order_start = 0;
  std::int64_t order_stream = 0;
  std::vector<SourceState> sources = {};  ///< in the job's order, then those it names no more; empty in
                                          ///< checkpoints of older versions, which had one
  std::string job = {};     ///< the resolved job, so that a resumed run can say what changed; empty in
                            ///< checkpoints of older versions
  std::string origin = {};  ///< where the weights came from, as core/hf writes it; empty: from the seed
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

/// One rank's contribution: the bytes of a whole safetensors file and the boxes that its tensors are.
struct ShardContent {
  std::span<const std::byte> bytes;
  std::vector<TensorSlice> slices;
};

/// A shard that is on the disk, before its checkpoint is complete.
struct WrittenShard {
  ShardInfo info;
  std::vector<TensorSlice> slices;
};

/// JSON text of a manifest and back. `parse_manifest` throws CheckpointError on anything malformed or
/// inconsistent (slices outside their tensors, unknown shard, version from the future).
std::string to_json(const Manifest& manifest);
Manifest parse_manifest(const std::string& text);
/// The same text, of shards by rank.
std::string to_json(const TrainingState& state, std::span<const WrittenShard> shards);

struct StoredCheckpoint {
  std::int64_t step = 0;
  std::string path;
  bool good = false;           ///< tagged: the losses that followed it stayed sane
  std::string left_over = {};  ///< of one just written: why older ones could not be removed; empty: they were

  /// Of its folder: "step-00000010".
  std::string name() const { return path.substr(path.rfind('/') + 1); }
};

/// Checks that a shard's file holds exactly the tensors that its slices say. Throws CheckpointError naming
/// the tensor.
void check_shard(const SafetensorsHeader& header, std::span<const TensorSlice> slices,
                 const std::string& file);

/// Folders that are being read: they are not removed. For several threads.
class PinnedFolders {
 public:
  void pin(const std::string& folder);
  void unpin(const std::string& folder);
  bool has(const std::string& folder) const;

 private:
  mutable std::mutex mutex_;
  std::multiset<std::string> folders_;
};

/// The checkpoints of one run: a folder of a storage for each step. Shards and manifest are written under
/// their last names, and COMPLETE after all of them are durable: no rename, so that a disk and an object
/// store take the same steps. What has no COMPLETE is ignored, and a checkpoint that is removed loses it
/// first: a kill at any moment leaves every earlier checkpoint whole. A step that is saved again goes to a
/// folder of its own attempt, and the older one goes when that is complete.
class CheckpointStore {
 public:
  /// Makes the directory if it is not there. Throws CheckpointError when it cannot be written.
  /// With `read_back` every shard is read and compared after it was written.
  CheckpointStore(const std::string& directory, std::int64_t keep, std::int64_t keep_every = 0,
                  bool read_back = false);
  /// What is there is not looked at.
  CheckpointStore(std::shared_ptr<Storage> storage, Retention retention, bool read_back = false)
      : storage_(std::move(storage)), retention_(retention), read_back_(read_back) {}

  /// Removes what kills left, at the start of a run that has the directory to itself. The first problem;
  /// empty: none.
  std::string collect_partial() const;

  /// The attempt that a checkpoint of this step is, by the folders that are there.
  std::int64_t next_attempt(std::int64_t step) const;
  /// The same of every step whose first attempt is taken.
  std::map<std::int64_t, std::int64_t> next_attempts() const;

  /// Hashes, writes and completes a checkpoint, then removes the oldest ones that are not to be kept, and
  /// what earlier kills left; what cannot be removed is left for the next one. On an error (disk full, ...)
  /// removes what it wrote and throws CheckpointError: a StorageError can be tried again. Its attempt is
  /// `least_attempt` at the least: another host may still write to earlier ones, which are not seen here.
  StoredCheckpoint write(const TrainingState& state, std::span<const ShardContent> shards,
                         std::int64_t least_attempt = 1);

  // The same in two parts, for nodes that share the directory: each writes its shards, of ranks from `first`
  // on, and one completes the checkpoint with those of all, by rank. Checkpoints of later steps may be under
  // way meanwhile. All agree on the attempt. After a StorageError either can be tried again.
  std::vector<WrittenShard> write_shards(std::int64_t step, std::int64_t attempt, std::int64_t first,
                                         std::span<const ShardContent> shards) const;
  StoredCheckpoint complete(const TrainingState& state, std::int64_t attempt,
                            std::span<const WrittenShard> shards) const;

  // The same of a checkpoint that is elsewhere, file by file. What is there of one that was interrupted is
  // not written again; one that is complete under this name loses its marker.
  /// The bytes that were written.
  std::int64_t copy_shard(const std::string& folder, const std::string& file, const StoredFile& from,
                          const Pace& pace) const;
  StoredCheckpoint complete_copy(const std::string& folder, const std::string& manifest) const;

  /// Removes what is there of a checkpoint that will not be completed. One that is complete stays.
  void discard(std::int64_t step, std::int64_t attempt) const;

  /// Tags the complete checkpoint of a step as good. False when there is none.
  bool tag_good(std::int64_t step) const;

  /// Makes a complete checkpoint one that does not count, and leaves its files to be looked at.
  void withdraw(const std::string& name) const;

  /// A folder that stays while it is read.
  PinnedFolders& pinned() const { return *pinned_; }
  /// One checkpoint's files.
  std::shared_ptr<Storage> folder(const std::string& name) const;
  const std::shared_ptr<Storage>& storage() const { return storage_; }

  /// Complete checkpoints, newest first; of a step the newest attempt. Throws StorageError when one cannot be
  /// looked at.
  std::vector<StoredCheckpoint> list() const;
  /// The same with all attempts.
  std::vector<StoredCheckpoint> list_attempts() const;
  /// Those that lack their marker, of steps without a complete one, newest first.
  std::vector<StoredCheckpoint> incomplete() const;

  struct Found {
    StoredCheckpoint where;
    Manifest manifest;
  };
  /// The newest checkpoint that is whole: every shard there with its size and checksum. One that is not is
  /// named through `rejected(path, why)` and the next is tried. Empty when there are none at all;
  /// CheckpointError when there are, but none is whole, and when one cannot be read: that is not damage.
  std::optional<Found> newest_valid(
      const std::function<void(const std::string& path, const std::string& why)>& rejected) const;

 private:
  void mark(const std::string& name, const std::string& manifest, std::span<const WrittenShard> shards) const;
  std::shared_ptr<Storage> storage_;
  Retention retention_;
  bool read_back_ = false;
  std::shared_ptr<PinnedFolders> pinned_ = std::make_shared<PinnedFolders>();
};

/// The complete checkpoints in a directory, and those that lack their marker; newest first. Nothing is
/// written.
std::vector<StoredCheckpoint> list_checkpoints(const std::string& directory, const OpenRemote& remote = {});
std::vector<StoredCheckpoint> list_incomplete(const std::string& directory, const OpenRemote& remote = {});

/// Reads and checks one checkpoint: throws CheckpointError naming the file and what is wrong with it.
Manifest verify_checkpoint(const std::string& path, const OpenRemote& remote = {});
/// The same of the checkpoint at the storage's root.
Manifest verify_checkpoint(const Storage& storage);

/// Whether every element of `box` lies in one of `held`, of the same tensor.
bool covers(std::span<const TensorSlice> held, const TensorSlice& box);
/// Whether the two are of one tensor and have an element in common.
bool overlap(const TensorSlice& a, const TensorSlice& b);

/// Reads boxes of logical tensors from a checkpoint, whatever layout saved it, reading only the bytes it
/// needs.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::string& path, const OpenRemote& remote = {});
  /// Of shards in memory, which outlive this; `name` is for messages. No disk is read.
  CheckpointReader(std::string name, std::span<const ShardContent> shards);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;
  const Manifest& manifest() const;
  /// Fills `out` with the box, row-major. Throws CheckpointError: no such tensor, another dtype or logical
  /// shape, a part that no shard holds, a short read.
  void read(const TensorSlice& box, std::span<std::byte> out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
