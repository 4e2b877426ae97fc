#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/compare.h"

// What `trainerd checkpoint` prints of the checkpoints in a directory.

namespace trainerd::io {

/// The checkpoints that a path means: of a run's output directory or of its directory of checkpoints all, of
/// one checkpoint's directory that one. Newest first.
struct CheckpointsAt {
  std::vector<StoredCheckpoint> complete;
  std::vector<StoredCheckpoint> incomplete;  ///< without their marker
};
/// `remote`: for paths at s3://. Throws CheckpointError when the path is no directory or cannot be looked at.
CheckpointsAt checkpoints_at(const std::string& path, const OpenRemote& remote = {});

/// One checkpoint that was verified.
struct Verified {
  StoredCheckpoint where;
  std::optional<Manifest> manifest;  ///< none: it is not whole
  std::string problem;               ///< why not
};
Verified verified(const StoredCheckpoint& where, const OpenRemote& remote = {});

/// Bytes of all shards.
std::int64_t bytes_of(const Manifest& manifest);
/// A tensor of a checkpoint by its logical name.
struct TensorSummary {
  std::string name;
  kernels::DType dtype = kernels::DType::f32;
  std::vector<std::int64_t> shape;
  std::int64_t parts = 0;
};
std::vector<TensorSummary> tensors_of(const Manifest& manifest);

// One JSON object each.
std::string list_json(const CheckpointsAt& checkpoints);
std::string verify_json(const std::vector<Verified>& checkpoints);
std::string show_json(const Verified& checkpoint, const Statistics& statistics);
std::string diff_json(const Comparison& comparison);

}  // namespace trainerd::io
