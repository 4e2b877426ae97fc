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

// What changed between a checkpoint and the run that resumes from it: the data and the keys of the job.

namespace trainerd::core::run {

/// Entry of a checkpoint's identity: the checksum of the reference's log-probabilities (loss.dpo).
inline constexpr const char* kReferenceEntry = "reference";

/// A job's data as one node sees it.
struct DataSeen {
  std::vector<io::SourceFacts> sources;  ///< of the training data
  std::string valid;                     ///< files and content of the validation data; empty: there is none
  /// What evaluations read, each by its key and name ("evaluate.choices: facts"): files and content.
  std::map<std::string, std::string> evaluated = {};

  std::string files() const { return io::all_files(sources); }
  std::string content() const { return io::all_content(sources); }  ///< empty for synthetic tokens
};

/// Opens all files, checks samples of their ids and identifies their content. Once per node: it reads up to
/// 256 MiB of each source of the training data and as much of validation data, and all questions. Throws
/// DataError.
DataSeen look_at_data(const job::JobSpec& job, const io::DataFiles& files = {});

/// One text for what `files` and `content` say, by which ranks and nodes are compared.
std::string data_text(const std::string& files, const std::string& content);

/// The order of samples that a run follows, and what is known of sources that its job does not name any more.
struct DataCourse {
  io::DataOrder order;
  std::vector<io::SourceState> gone;
};

/// Writes what was seen, and what was taken of it by `state.cursor`, into the state of a checkpoint.
void record_data(const DataSeen& seen, const DataCourse& course, io::TrainingState& state);

/// What a resumed run continues with.
struct ResumedData {
  DataCourse course;
  std::vector<io::NoticeRecord> notices;
};
/// Compares the data with the checkpoint's at `path`. A source is known again by its files and their content,
/// wherever they lie. Sources that were added, taken away or weighed anew are a notice: from the checkpoint's
/// cursor on each gives the samples after those that were taken of it. A source that came where another one
/// is gone may be a file that changed: that is refused by a CheckpointError that says what differs, or goes
/// on with the new source from its start. Checkpoints of versions that recorded no content are compared by
/// names and sizes, with a warning. Other validation data is a notice.
ResumedData resumed_data(const std::string& path, const io::TrainingState& saved, const DataSeen& now,
                         io::DataChange on_change);

/// Throws DataError when the sources' epochs and tokens allow fewer samples than `needed` from the order's
/// start on.
void require_enough(const DataSeen& seen, const io::DataOrder& order, std::int64_t needed);

/// The keys that changed since the checkpoint; none when none did. `earlier_job` is the resolved job of the
/// output directory, for checkpoints that do not record theirs; both may be empty.
std::optional<io::NoticeRecord> job_changes(const io::TrainingState& saved, const std::string& earlier_job,
                                            const job::JobSpec& now);

}  // namespace trainerd::core::run
