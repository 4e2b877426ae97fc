#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "io/console/run_log.h"
#include "io/console/screen.h"

// The program's log, a line an event, through spdlog's default logger. spdlog is included in log.cpp alone:
// its headers cost more to compile than anything that logs.

namespace trainerd::core::run::log {

enum class Level : std::uint8_t { info, warn, error };

/// Any thread may call it.
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

/// Makes `screen` and `file` the places where the log is written. The logger keeps both: a thread that is
/// left behind may still log.
void write_to(const std::shared_ptr<io::Screen>& screen, const std::shared_ptr<io::RunLog>& file);

}  // namespace trainerd::core::run::log
