#pragma once

#include <string>

#include "parallel/schedule/timeline.h"

namespace trainerd::parallel {

/// Draws a schedule as a complete SVG file: a row per rank, a cell per computation with its microbatch, later
/// virtual stages paler, and messages that take time as lines below their sender. Two computations that take
/// turns are one above the other. Uncovered time is bubble.
/// Follows the page's light or dark mode; no scripts.
std::string schedule_svg(const Timeline& timeline, const std::string& title);

}  // namespace trainerd::parallel
