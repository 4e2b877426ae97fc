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
/// (loss.dpo), 16 bytes a pair. Not a number: not known.
class ReferenceTable {
 public:
  explicit ReferenceTable(std::span<const io::SourceFacts> sources);

  bool has(const io::TokenBlend::Sample& pair) const;
  std::array<double, 2> at(const io::TokenBlend::Sample& pair) const;
  void set(const io::TokenBlend::Sample& pair, std::array<double, 2> logps);
  /// Of all pairs, source after source.
  std::span<double> values() { return values_; }
  /// 128-bit XXH3 of the values.
  std::string checksum() const;

  /// A safetensors file with one tensor, `log_probabilities` [pairs, 2], and in its metadata `data` and the
  /// checksum. Throws CheckpointError.
  void write(const std::string& path, const std::string& data) const;
  /// Why the file cannot be taken for one of these; empty: the values are its.
  std::string read(const std::string& path, const std::string& data, const std::string& checksum);

 private:
  std::size_t place_of(const io::TokenBlend::Sample& pair) const;
  std::vector<std::int64_t> first_;  ///< pair of each source
  std::vector<double> values_;
};

struct ReferenceWork {
  const job::JobSpec& job;
  const Start& start;
  const train::Snapshot& snapshot;
  train::Trainer& trainer;
  io::TokenBlend& data;
  const io::FindS3& find_s3;
  std::function<void(const io::NoticeRecord&)> tell;  ///< of rank 0 alone
  std::function<void()> batch_done;                   ///< throws where the run is over
};
/// What the run's steps need of it; nothing of a job without loss.dpo. A run that goes on takes what it kept
/// in its output, if that is what its checkpoint names; what is missing is computed by the weights that the
/// run began from. On every rank, before the rank's state is restored, which this changes.
std::shared_ptr<const ReferenceTable> make_reference(const ReferenceWork& work);

}  // namespace trainerd::core::run
