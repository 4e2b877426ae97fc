#pragma once

#include <string>
#include <vector>

#include "io/metrics/report/page.h"

namespace trainerd::io {

struct ComparedRun {
  std::string label;  ///< unique among the compared runs
  std::string path;   ///< its output directory
  Report report;
};

/// A key whose value differs between the jobs.
struct DifferingKey {
  std::string key;
  std::vector<std::string> values;  ///< per run; empty: that job does not have it
};

/// Returns labels for runs: the last part of each path if these differ, else the whole paths.
std::vector<std::string> run_labels(const std::vector<std::string>& paths);

/// Renders several runs in one page: final figures, overlaid curves with smoothing and zoom, ledgers side by
/// side, and differing keys. Without scripts the curves are static pictures.
std::string render_comparison(const std::vector<ComparedRun>& runs, const std::vector<DifferingKey>& keys);

}  // namespace trainerd::io
