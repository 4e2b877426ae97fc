#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Checkpoints made of checkpoints, without a run: in memory of about one piece of a tensor
// (io::kTensorPieceBytes) and the lists of what is where.

namespace trainerd::core::reshard {

/// A checkpoint that was made.
struct Made {
  std::string path;
  std::vector<std::string> from;  ///< the checkpoints that it was made of
  std::int64_t step = 0;
  std::int64_t shards = 0;
  std::int64_t bytes = 0;  ///< of the shards
  std::string layout = {};
};

/// Writes to `out` what the ranks of another layout would have saved of the same state, bit for bit. `from`
/// is a checkpoint's directory, or a run's (its newest); it is verified first. `overrides` are
/// "parallel.tp=2" texts over the job that saved it: of `parallel`, `cluster` and `batch.micro` alone. Throws
/// CheckpointError (not whole; no job in it; `out` exists; the disk), SpecError (another key; a layout that
/// the job cannot have).
Made reshard(const std::string& from, const std::string& out, const std::vector<std::string>& overrides);

/// Writes to `out` the mean of checkpoints of one model: of every weight and every state of the optimizer, in
/// float64, rounded to nearest. Shards, step and position in the data are those of the newest. Throws
/// CheckpointError when they do not hold the same tensors, or differ in what a resumed run must share but
/// data and seed, or hold adapters of different base weights.
Made merge(const std::vector<std::string>& from, const std::string& out);

}  // namespace trainerd::core::reshard
