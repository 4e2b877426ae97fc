#pragma once

#include <string>
#include <vector>

namespace trainerd::io {

/// Draws a curve with braille dots, 2 by 4 per cell: `rows` lines of `columns` cells, from top to bottom. The
/// values are spread over the width; those that are not finite leave gaps. Without values all lines are
/// blank.
std::vector<std::string> braille_plot(const std::vector<double>& values, double low, double high,
                                      std::size_t columns, std::size_t rows);

/// Draws a bar of `columns` cells, filled in eighths; `share` is from 0 to 1.
std::string bar(double share, std::size_t columns);

}  // namespace trainerd::io
