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

/// A key of the jobs that has not the same value in all of them.
struct DifferingKey {
  std::string key;
  std::vector<std::string> values;  ///< by run; empty: that job has none
};

/// Labels of runs by their directories: the last part of each path, where these differ, else the whole paths.
std::vector<std::string> run_labels(const std::vector<std::string>& paths);

/// Several runs in one page: final figures, curves over each other with smoothing and zoom, ledgers side by
/// side, differing keys. Without a script the curves are pictures.
std::string render_comparison(const std::vector<ComparedRun>& runs, const std::vector<DifferingKey>& keys);

}  // namespace trainerd::io
