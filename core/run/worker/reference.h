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

/// The reference's log-probabilities of the chosen and the rejected answer of each pair of the training data
/// and of the validation sets (loss.dpo), 16 bytes a pair. Not a number: not known.
class ReferenceTable {
 public:
  /// The training data, or a validation set.
  using Part = std::size_t;
  static constexpr Part kTraining = 0;  ///< validation set i is part 1 + i
  /// The sources of each part.
  explicit ReferenceTable(const std::vector<std::vector<io::SourceFacts>>& parts);

  bool has(Part part, const io::TokenBlend::Sample& pair) const;
  std::array<double, 2> at(Part part, const io::TokenBlend::Sample& pair) const;
  void set(Part part, const io::TokenBlend::Sample& pair, std::array<double, 2> logps);
  /// Of all pairs, source after source, part after part.
  std::span<double> values() { return values_; }
  std::int64_t known() const;  ///< pairs
  /// 128-bit XXH3 of the values.
  std::string checksum() const;

  /// What the values are of.
  struct Identity {
    std::string data;
    std::string weights;  ///< and how they compute; empty: not known
  };
  /// A safetensors file with one tensor, `log_probabilities` [pairs, 2], and in its metadata the identity and
  /// the checksum. Throws CheckpointError.
  void write(const std::string& path, const Identity& identity) const;
  /// Why the file cannot be taken for one of `identity` with this checksum; empty: the values are its. An
  /// empty checksum stands for the file's own.
  std::string read(const std::string& path, const Identity& identity, const std::string& checksum);

 private:
  std::size_t place_of(Part part, const io::TokenBlend::Sample& pair) const;
  std::vector<std::vector<std::int64_t>> first_;  ///< pair of each source
  std::vector<double> values_;
};

/// Pairs that the run reads: of some data those of the cursors [first, first + count).
struct ReferencePairs {
  std::shared_ptr<io::TokenBlend> data;
  std::int64_t first = 0, count = 0;
};

struct ReferenceWork {
  const job::JobSpec& job;
  const Start& start;
  const train::Snapshot& snapshot;
  train::Trainer& trainer;
  std::vector<ReferencePairs> parts;  ///< of the table
  const io::FindS3& find_s3;
  std::function<void(const WorkerMessage&)> report;  ///< of rank 0 alone
  std::function<void()> batch_done;                  ///< throws where the run is over
};
/// The table with every pair that the run's steps and evaluations read; null for a job without loss.dpo. A
/// resumed run reads the file in its output if it is the one that the checkpoint names. A run that was
/// interrupted before its first checkpoint reads what it had computed. Missing pairs are computed with the
/// weights that the run began from. Every rank calls it before its state is restored: it changes the state.
std::shared_ptr<const ReferenceTable> make_reference(const ReferenceWork& work);

}  // namespace trainerd::core::run
