#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/run/agent/elastic.h"
#include "core/run/wire/messages.h"

namespace trainerd::core::run {

/// Reads which samples a rollback skips from the file `path`; none if there is no file. Throws
/// CheckpointError if it cannot be read.
std::optional<RunSeries::PassedOver> read_passed_over(const std::string& path);
/// Replaces the file, or removes it if `passed` is empty. Throws CheckpointError.
void write_passed_over(const std::string& path, const std::optional<RunSeries::PassedOver>& passed);

/// Sets `passed` in the series and the file, so that a later start of the job, or another leader, skips the
/// same samples. Returns why the file could not be written; empty on success.
std::string pass_samples_over(RunSeries& series, const std::optional<RunSeries::PassedOver>& passed,
                              const std::string& path);

/// First sample of a run that continues from the checkpoint of `step` (0: from the start), if a rollback to
/// that step skipped samples; else none. If `step` is earlier than the rollback's, the file is removed: the
/// steps up to it are done again, and the skipped samples are read.
std::optional<std::int64_t> cursor_after(RunSeries& series, std::int64_t step, const std::string& path);

/// Keeps the leader's spike history on another node, in case it leads later. The steps' numbers are assumed
/// consecutive up to `step`, which is true if none was skipped.
void keep_history(RunSeries& series, const SpikeHistory& history, std::int64_t step);

}  // namespace trainerd::core::run
