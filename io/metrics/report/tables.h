#pragma once

#include <string>

#include "io/metrics/report/page.h"

// The report's parts beside its charts, as HTML; each is empty where there is nothing to show.

namespace trainerd::io {

/// A part of the ledger as it is read: "data wait".
std::string part_words(const base::LedgerPartInfo& part);
/// The style's class of an outcome: good, bad, warn or run.
const char* class_of_outcome(const std::string& outcome);
/// The outcome in one word: "done", "running", "stopped", "lost", "failed".
std::string short_outcome(const std::string& outcome);

/// Command, commit, host, layout, data: what ran, and where.
std::string facts_table(const Report& report);
/// The attempts of the run, when there were several.
std::string attempts_table(const Report& report);
/// What the wall time of all attempts went into; empty for a single one.
std::string wall_table(const Report& report);
/// Notices of the run, newest first.
std::string history_table(const Report& report);
/// What all steps took, by part of the ledger.
std::string ledger_table(const Report& report);
/// Memory, prediction, evaluations, checkpoints.
std::string figures_tables(const Report& report);

}  // namespace trainerd::io
