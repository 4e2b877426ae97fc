#pragma once

#include <string>
#include <vector>

#include "io/runs/status.h"
#include "io/top/line.h"

namespace trainerd::io {

struct FrameOptions {
  std::size_t columns = 80;
  std::size_t rows = 24;  ///< 0: as many as are useful
  Line::Colors colors = Line::Colors::none;
  /// A line below the title in the warning tone, saying why the figures are old; empty: none.
  std::string warning = {};
  /// Why the ranks are unknown, if they are.
  std::string no_ranks = {};
};

/// Draws a run's status as lines that fit into `columns` and `rows`. The loss curve uses the rows that are
/// left. From 110 columns on sections are side by side. Below 40 columns or 10 rows only the most important
/// facts are shown.
std::vector<std::string> top_frame(const RunStatus& status, const FrameOptions& options);

}  // namespace trainerd::io
