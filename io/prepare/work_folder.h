#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/prepare/indexed_writer.h"
#include "io/prepare/parts.h"
#include "kernels/base/fd.h"

namespace trainerd::io {

/// Contents of a finished part.
struct PartRecord {
  IndexedTotals totals;
  std::int64_t empty_documents = 0;
  std::int64_t long_pairs = 0;  ///< pairs left out because they are too long
};

/// The directory in which a data set is built: `out`.partial, beside the final `out`. A part is finished when
/// its record exists; the record is written last. Only one process at a time may use it.
class WorkFolder {
 public:
  /// Makes the directory or continues an existing one. Throws DataError if another process uses it or if it
  /// cannot be made.
  explicit WorkFolder(const std::string& out);
  /// Removes the directory if no part is finished.
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  std::string stem(std::size_t part) const;   ///< "out.partial/tokens-00003"
  static std::string name(std::size_t part);  ///< "tokens-00003"
  /// Returns the records of finished parts; removes everything else.
  std::vector<std::optional<PartRecord>> keep(const std::vector<Part>& parts) const;
  void record(std::size_t part, const std::string& key, const PartRecord& record) const;
  /// Writes `dataset.json`, removes the records and renames the directory to `out`.
  void finish(const std::string& dataset_json) const;
  /// Completes a `finish` that was killed. Returns false if there was none.
  bool finish_earlier(const std::string& plan) const;

 private:
  std::string record_path(std::size_t part) const;
  void publish() const;
  std::string out_, path_;
  base::UniqueFd lock_;
};

/// A data set as described by its `dataset.json`.
struct MadeDataset {
  std::string plan;
  std::string broken;  ///< first of its files that is missing or has a wrong size; empty: none
};
/// Returns none if there is no such file in `directory`. Throws DataError if it is invalid.
std::optional<MadeDataset> made_dataset(const std::string& directory);

}  // namespace trainerd::io
