#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "io/console/run_log.h"
#include "io/console/screen.h"

// The program's log, one line per event, through spdlog's default logger. Only log.cpp includes spdlog,
// because its headers are slow to compile.

namespace trainerd::core::run::log {

enum class Level : std::uint8_t { info, warn, error };

/// Thread-safe.
void write(Level level, std::string_view text);
void flush();

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

/// Directs the log to `screen` and `file`. The logger shares ownership of both: a detached thread may still
/// log.
void write_to(const std::shared_ptr<io::Screen>& screen, const std::shared_ptr<io::RunLog>& file);

}  // namespace trainerd::core::run::log
