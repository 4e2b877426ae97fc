#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Builds checkpoints from checkpoints without a run. Needs memory for about one piece of a tensor
// (io::kTensorPieceBytes) and for the lists of slices.

namespace trainerd::core::reshard {

/// A written checkpoint.
struct Made {
  std::string path;
  std::vector<std::string> from;  ///< the source checkpoints
  std::int64_t step = 0;
  std::int64_t shards = 0;
  std::int64_t bytes = 0;  ///< total size of the shards
  std::string layout = {};
};

/// Writes to `out` the checkpoint that the ranks of another layout would have saved of the same state, bit
/// for bit. `from` is the directory of a checkpoint, or of a run (its newest); it is verified first.
/// `overrides` are "parallel.tp=2" texts for the job that saved it; only `parallel`, `cluster` and
/// `batch.micro` are allowed. Throws CheckpointError (incomplete; no job in it; `out` exists; the disk),
/// SpecError (another key; a layout that the job cannot have).
Made reshard(const std::string& from, const std::string& out, const std::vector<std::string>& overrides);

/// Writes to `out` the mean of checkpoints of one model: every weight and optimizer state, in float64,
/// rounded to nearest. Shards, step and position in the data are those of the newest. Throws CheckpointError
/// if they hold different tensors, differ in keys that a resumed run must share (except data and seed), or
/// hold adapters of different base weights.
Made merge(const std::vector<std::string>& from, const std::string& out);

}  // namespace trainerd::core::reshard
