#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/compare.h"

// Output of `trainerd checkpoint` about the checkpoints in a directory.

namespace trainerd::io {

/// The checkpoints at a path, newest first: all in a run's output directory or its checkpoint directory, or
/// the one checkpoint at the path itself.
struct CheckpointsAt {
  std::vector<StoredCheckpoint> complete;
  std::vector<StoredCheckpoint> incomplete;  ///< without a marker
};
/// `remote` opens s3:// paths. Throws CheckpointError if the path is no directory or cannot be accessed.
CheckpointsAt checkpoints_at(const std::string& path, const OpenRemote& remote = {});

/// Result of verifying one checkpoint.
struct Verified {
  StoredCheckpoint where;
  std::optional<Manifest> manifest;  ///< none: it is invalid
  std::string problem;               ///< why it is invalid
};
Verified verified(const StoredCheckpoint& where, const OpenRemote& remote = {});

/// Size of all shards.
std::int64_t bytes_of(const Manifest& manifest);
/// A tensor of a checkpoint, by its logical name.
struct TensorSummary {
  std::string name;
  kernels::DType dtype = kernels::DType::f32;
  std::vector<std::int64_t> shape;
  std::int64_t parts = 0;
};
std::vector<TensorSummary> tensors_of(const Manifest& manifest);

// Each returns one JSON object.
std::string list_json(const CheckpointsAt& checkpoints);
std::string verify_json(const std::vector<Verified>& checkpoints);
std::string show_json(const Verified& checkpoint, const Statistics& statistics);
std::string diff_json(const Comparison& comparison);

}  // namespace trainerd::io
