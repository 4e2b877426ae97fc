#pragma once

#include <string>

#include "io/metrics/report/page.h"

// Parts of the report besides its charts, as HTML. Each is empty if there is nothing to show.

namespace trainerd::io {

/// Returns the CSS class of an outcome: good, bad, warn or run.
const char* class_of_outcome(const std::string& outcome);
/// Returns the outcome in one word: "done", "running", "stopped", "lost", "failed".
std::string short_outcome(const std::string& outcome);

/// What ran and where: command, commit, host, layout, data.
std::string facts_table(const Report& report);
/// Attempts of the run; empty if there was only one.
std::string attempts_table(const Report& report);
/// Split of all attempts' wall time; empty if there was only one attempt.
std::string wall_table(const Report& report);
/// Notices of the run, newest first.
std::string history_table(const Report& report);
/// Time of all steps by ledger part.
std::string ledger_table(const Report& report);
/// Memory, prediction, evaluations, checkpoints.
std::string figures_tables(const Report& report);

}  // namespace trainerd::io
