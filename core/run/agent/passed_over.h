#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/run/agent/elastic.h"
#include "core/run/wire/messages.h"

namespace trainerd::core::run {

/// What the file `path` says of samples that a rollback passed over; nothing: it is not there. Throws
/// CheckpointError: it cannot be read.
std::optional<RunSeries::PassedOver> read_passed_over(const std::string& path);
/// Replaces the file, or removes it where nothing is passed over. Throws CheckpointError.
void write_passed_over(const std::string& path, const std::optional<RunSeries::PassedOver>& passed);

/// Keeps that in the series and in the file, so that another start of the job, and another leader, pass the
/// same samples over. Why it could not be written; empty: it was.
std::string pass_samples_over(RunSeries& series, const std::optional<RunSeries::PassedOver>& passed,
                              const std::string& path);

/// Where the samples begin in a run that goes on from the checkpoint of `step` (0: from the start), if a
/// rollback to it passed some over. Before that step they begin as the checkpoint says, and the file is
/// removed: the steps up to it are done again, with other samples than the rollback knew.
std::optional<std::int64_t> cursor_after(RunSeries& series, std::int64_t step, const std::string& path);

/// What a node that does not lead keeps of the judged steps, in case that it leads later: their numbers are
/// those that they have where none was skipped.
void keep_history(RunSeries& series, const SpikeHistory& history, std::int64_t step);

}  // namespace trainerd::core::run
