#pragma once

#include <string>

#include "parallel/layout/placement.h"

namespace trainerd::parallel {

/// Draws a placed grid as a complete SVG file: one box per node and in it one cell per device, coloured by
/// pipeline stage and labelled with the rank and its coordinates on axes of more than one rank. Readable on
/// light and dark pages.
std::string placement_svg(const PlacedGrid& placed);

}  // namespace trainerd::parallel
