#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/prepare/indexed_writer.h"
#include "io/prepare/parts.h"
#include "kernels/base/fd.h"

namespace trainerd::io {

/// What a finished part holds.
struct PartRecord {
  IndexedTotals totals;
  std::int64_t empty_documents = 0;
  std::int64_t long_pairs = 0;  ///< left out
};

/// The directory in which a data set grows, beside the one that it becomes: `out`.partial. A part is finished
/// when its record is there, which is written last. One process at a time works in it.
class WorkFolder {
 public:
  /// Makes it, or takes the one that is there. Throws DataError: another process works in it, it cannot be
  /// made.
  explicit WorkFolder(const std::string& out);
  /// Removes it where nothing is finished.
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  std::string stem(std::size_t part) const;   ///< "out.partial/tokens-00003"
  static std::string name(std::size_t part);  ///< "tokens-00003"
  /// The records of the parts that are finished; removes all else.
  std::vector<std::optional<PartRecord>> keep(const std::vector<Part>& parts) const;
  void record(std::size_t part, const std::string& key, const PartRecord& record) const;
  /// Writes `dataset.json` and makes the folder `out`. The records are not in it.
  void finish(const std::string& dataset_json) const;
  /// Does the rest of `finish` where a kill ended it. False: nothing to do.
  bool finish_earlier(const std::string& plan) const;

 private:
  std::string record_path(std::size_t part) const;
  void publish() const;
  std::string out_, path_;
  base::UniqueFd lock_;
};

/// A data set as its `dataset.json` says.
struct MadeDataset {
  std::string plan;
  std::string broken;  ///< the first of its files that is missing or of another size; empty: none
};
/// None: there is no such file in `directory`. Throws DataError: it is broken.
std::optional<MadeDataset> made_dataset(const std::string& directory);

}  // namespace trainerd::io
