#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "io/checkpoint/checkpoint.h"
#include "io/records/records.h"

// What changed between a checkpoint and the run that resumes from it: the data and the keys of the job.

namespace trainerd::core::run {

/// A job's data as one node sees it.
struct DataSeen {
  std::string files;    ///< names and sizes of the training data
  std::string content;  ///< of samples of every file; empty for synthetic tokens
  std::string valid;    ///< files and content of the validation data; empty: there is none
};

/// Opens all files, checks samples of their ids and identifies their content. Once per node: it reads up to
/// 256 MiB of training data and as much of validation data. Throws DataError.
DataSeen look_at_data(const job::JobSpec& job);

/// One text for what `files` and `content` say, by which ranks and nodes are compared.
std::string data_text(const std::string& files, const std::string& content);

/// Writes what was seen into the identity of a checkpoint.
void record_data(const DataSeen& seen, io::TrainingState& state);

/// The order of samples that a resumed run continues with.
struct ResumedData {
  std::int64_t order_start = 0;   ///< the cursor at which the present order of samples began
  std::int64_t order_stream = 0;  ///< its number
  std::vector<io::NoticeRecord> notices;
};
/// Compares the data with the checkpoint's at `path`. Other training data is refused by a CheckpointError
/// that says what differs, or begins a new order of samples at the checkpoint's cursor. Checkpoints of
/// versions that recorded no content are compared by names and sizes, with a warning. Other validation data
/// is a notice.
ResumedData resumed_data(const std::string& path, const io::TrainingState& saved, const DataSeen& now,
                         io::DataChange on_change);

/// The keys that changed since the checkpoint; none when none did. `earlier_job` is the resolved job of the
/// output directory, for checkpoints that do not record theirs; both may be empty.
std::optional<io::NoticeRecord> job_changes(const io::TrainingState& saved, const std::string& earlier_job,
                                            const job::JobSpec& now);

}  // namespace trainerd::core::run
