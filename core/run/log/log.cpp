#include "core/run/log/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <string>
#include <utility>

namespace trainerd::core::run::log {
namespace {

using Style = io::Screen::Style;

// On a terminal: without the date, and with warnings and errors coloured.
std::string pattern_of(spdlog::level::level_enum level, Style style) {
  if (style == Style::plain) return "[%Y-%m-%d %H:%M:%S.%e] [%l] %v";
  if (level < spdlog::level::warn) return "%H:%M:%S %v";
  return std::string(level == spdlog::level::warn ? "%H:%M:%S \033[33m" : "%H:%M:%S \033[31m") +
         "%l: %v\033[0m";
}

class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  LogSink(std::shared_ptr<io::Screen> screen, std::shared_ptr<io::RunLog> file)
      : screen_(std::move(screen)), file_(std::move(file)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    spdlog::pattern_formatter(pattern_of(message.level, screen_->style()), spdlog::pattern_time_type::local,
                              "")
        .format(message, text);
    screen_->line(std::string(text.data(), text.size()));
    const spdlog::string_view_t level = spdlog::level::to_string_view(message.level);
    file_->add(std::string(level.data(), level.size()),
               std::string(message.payload.data(), message.payload.size()));
  }
  void flush_() override { screen_->finish(); }

 private:
  std::shared_ptr<io::Screen> screen_;
  std::shared_ptr<io::RunLog> file_;
};

spdlog::level::level_enum level_of(Level level) {
  switch (level) {
    case Level::info: return spdlog::level::info;
    case Level::warn: return spdlog::level::warn;
    case Level::error: return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void write(Level level, std::string_view text) { spdlog::log(level_of(level), "{}", text); }
void flush() { spdlog::default_logger()->flush(); }

void write_to(const std::shared_ptr<io::Screen>& screen, const std::shared_ptr<io::RunLog>& file) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("", std::make_shared<LogSink>(screen, file)));
}

}  // namespace trainerd::core::run::log
