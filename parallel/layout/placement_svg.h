#pragma once

#include <string>

#include "parallel/layout/placement.h"

namespace trainerd::parallel {

/// A picture of a placed grid: a box for each node, in it a cell for each device, coloured by pipeline stage
/// and labelled with the rank and its coordinates on the axes that have more than one rank. Stands alone;
/// readable on a light and on a dark page.
std::string placement_svg(const PlacedGrid& placed);

}  // namespace trainerd::parallel
