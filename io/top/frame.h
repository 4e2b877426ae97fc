#pragma once

#include <string>
#include <vector>

#include "io/runs/status.h"
#include "io/top/line.h"

namespace trainerd::io {

struct FrameOptions {
  std::size_t columns = 80;
  std::size_t rows = 24;  ///< 0: as many as are of use
  Line::Colors colors = Line::Colors::none;
  /// A line below the title, in the tone of a warning: why the figures are old; empty: they are not.
  std::string warning = {};
  /// Where there is nothing to say of ranks: why; empty: they are not known.
  std::string no_ranks = {};
};

/// A run's status as lines, none wider than the columns, at most as many as the rows; the curve of the loss
/// grows into rows that are left. Two columns of sections from 110 on. Fewer than 40 columns or 10 rows get
/// the most important of it.
std::vector<std::string> top_frame(const RunStatus& status, const FrameOptions& options);

}  // namespace trainerd::io
