#pragma once

#include <memory>

#include "io/console/screen.h"

namespace trainerd::core {

/// Makes `screen` the place where spdlog's default logger writes. The logger keeps it: a thread that is left behind may still log.
void log_to(const std::shared_ptr<io::Screen>& screen);

}  // namespace trainerd::core
