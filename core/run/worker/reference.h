#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/run/wire/messages.h"
#include "core/train/snapshot.h"
#include "core/train/trainer.h"
#include "io/records/records.h"
#include "io/tokens/token_blend.h"

namespace trainerd::core::run {

/// The reference's log-probabilities of the chosen and the rejected answer of each pair in the training data
/// and the validation sets (loss.dpo), 16 bytes per pair. NaN: not computed yet.
class ReferenceTable {
 public:
  /// The training data or a validation set.
  using Part = std::size_t;
  static constexpr Part kTraining = 0;  ///< validation set i is part 1 + i
  /// `parts`: the sources of each part.
  explicit ReferenceTable(const std::vector<std::vector<io::SourceFacts>>& parts);

  bool has(Part part, const io::TokenBlend::Sample& pair) const;
  std::array<double, 2> at(Part part, const io::TokenBlend::Sample& pair) const;
  void set(Part part, const io::TokenBlend::Sample& pair, std::array<double, 2> logps);
  /// The values of all pairs, ordered by part and source.
  std::span<double> values() { return values_; }
  std::int64_t known() const;  ///< number of computed pairs
  /// 128-bit XXH3 of the values.
  std::string checksum() const;

  /// What the values were computed from.
  struct Identity {
    std::string data;
    std::string weights;  ///< and their precision; empty: unknown
  };
  /// Writes a safetensors file with one tensor, `log_probabilities` [pairs, 2], and the identity and checksum
  /// in its metadata. Throws CheckpointError.
  void write(const std::string& path, const Identity& identity) const;
  /// Reads the values. Returns why the file does not match `identity` and `checksum`; empty on success. An
  /// empty `checksum` accepts the file's own.
  std::string read(const std::string& path, const Identity& identity, const std::string& checksum);

 private:
  std::size_t place_of(Part part, const io::TokenBlend::Sample& pair) const;
  std::vector<std::vector<std::int64_t>> first_;  ///< by part, source: number of its first pair
  std::vector<double> values_;
};

/// The pairs of some data that the run reads: cursors [first, first + count).
struct ReferencePairs {
  std::shared_ptr<io::TokenBlend> data;
  std::int64_t first = 0, count = 0;
};

struct ReferenceWork {
  const job::JobSpec& job;
  const Start& start;
  const train::Snapshot& snapshot;
  train::Trainer& trainer;
  std::vector<ReferencePairs> parts;  ///< in the order of the table's parts
  const io::FindS3& find_s3;
  std::function<void(const WorkerMessage&)> report;  ///< called on rank 0 only
  std::function<void()> batch_done;                  ///< throws if the run has ended
};
/// The table with every pair that the run's steps and evaluations read; null without loss.dpo. A resumed run
/// reads the file in its output if its checksum is the checkpoint's. A run that was interrupted before its
/// first checkpoint reuses the pairs that it had computed. Missing pairs are computed with the weights that
/// the run began from. Every rank calls it before its state is restored, because it changes the state.
std::shared_ptr<const ReferenceTable> make_reference(const ReferenceWork& work);

}  // namespace trainerd::core::run
