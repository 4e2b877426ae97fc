#pragma once

#include <string>

#include "parallel/schedule/timeline.h"

namespace trainerd::parallel {

/// The picture of a schedule as a complete SVG file: a row for each rank, a cell for each computation with
/// its microbatch, later virtual stages paler, messages that take time as lines below their sender, and what
/// is not covered is bubble. Light or dark as the reader's page is; no scripts.
std::string schedule_svg(const Timeline& timeline, const std::string& title);

}  // namespace trainerd::parallel
