#pragma once

#include <memory>

#include "io/console/run_log.h"
#include "io/console/screen.h"

namespace trainerd::core {

/// Makes `screen` and `file` the places where spdlog's default logger writes. The logger keeps both: a thread that is left behind may
/// still log.
void log_to(const std::shared_ptr<io::Screen>& screen, const std::shared_ptr<io::RunLog>& file);

}  // namespace trainerd::core
