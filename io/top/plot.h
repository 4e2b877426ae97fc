#pragma once

#include <string>
#include <vector>

namespace trainerd::io {

/// A curve in braille dots, 2 by 4 in a cell: `rows` lines of `columns` cells, the first one the highest. The
/// values are spread over the width; those that are not finite are gaps. All lines are blank without values.
std::vector<std::string> braille_plot(const std::vector<double>& values, double low, double high,
                                      std::size_t columns, std::size_t rows);

/// A bar of `columns` cells, filled in eighths: `share` from 0 to 1.
std::string bar(double share, std::size_t columns);

}  // namespace trainerd::io
