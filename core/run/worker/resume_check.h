#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "io/checkpoint/checkpoint.h"
#include "io/records/records.h"
#include "io/tokens/token_blend.h"

// Differences between a checkpoint and the run that resumes from it: the data and the keys of the job.

namespace trainerd::core::run {

/// Key in a checkpoint's identity: checksum of the reference's log-probabilities (loss.dpo).
inline constexpr const char* kReferenceEntry = "reference";

/// A job's data as one node sees it.
struct DataSeen {
  std::vector<io::SourceFacts> sources;  ///< of the training data
  std::string valid;                     ///< files and content of the validation data; empty: none
  /// Files and content that evaluations read, by key and name ("evaluate.choices: facts").
  std::map<std::string, std::string> evaluated = {};
  std::string stamp = {};  ///< io::data_stamp of the training data, from before it was read

  std::string files() const { return io::all_files(sources); }
  std::string content() const { return io::all_content(sources); }  ///< empty for synthetic tokens
};

/// Opens all files, checks a sample of their ids and hashes their content; once per node. It reads up to 256
/// MiB of each source of training and of validation data, and all questions. Throws DataError.
DataSeen look_at_data(const job::JobSpec& job, const io::DataFiles& files = {});

/// If the training data's stamp is not that of `seen` any more, reads the data again and replaces the stamp.
/// Throws DataError if it is not the same data. `files` must not remember objects from before.
void require_same_data(DataSeen& seen, const job::JobSpec& job, const io::DataFiles& files);

/// Joins `files` and `content` into one text, by which ranks and nodes are compared.
std::string data_text(const std::string& files, const std::string& content);

/// The order of a run's samples, and the state of sources that its job no longer names.
struct DataCourse {
  io::DataOrder order;
  std::vector<io::SourceState> gone;
};

/// Writes the data's identity, and the samples taken by `state.cursor`, into the state of a checkpoint.
void record_data(const DataSeen& seen, const DataCourse& course, io::TrainingState& state);

/// The order and notices with which a resumed run continues.
struct ResumedData {
  DataCourse course;
  std::vector<io::NoticeRecord> notices;
};
/// Compares the data with the checkpoint's at `path`. A source is matched by its files' names, sizes and
/// content, in any directory. For added, removed or reweighted sources there is a notice: from the
/// checkpoint's cursor on each source continues after its samples taken so far. If one source was added and
/// another removed, a file may have changed: by `on_change`, that throws CheckpointError with the
/// differences, or the new source starts from its beginning. Checkpoints of old versions lack content, so
/// only names and sizes are compared, with a warning. Changed validation data gives a notice.
ResumedData resumed_data(const std::string& path, const io::TrainingState& saved, const DataSeen& now,
                         io::DataChange on_change);

/// Throws DataError if the sources' epochs and tokens allow fewer than `needed` samples from the order's
/// start.
void require_enough(const DataSeen& seen, const io::DataOrder& order, std::int64_t needed);

/// A notice with the keys that changed since the checkpoint; none if none did. `earlier_job` is the resolved
/// job in the output directory, for checkpoints that do not record theirs. Both may be empty.
std::optional<io::NoticeRecord> job_changes(const io::TrainingState& saved, const std::string& earlier_job,
                                            const job::JobSpec& now);

}  // namespace trainerd::core::run
