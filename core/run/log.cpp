#include "core/run/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <string>
#include <utility>

namespace trainerd::core {
namespace {

using Style = io::Screen::Style;

// A person at a terminal knows the day, and wants to see what is wrong.
std::string pattern_of(spdlog::level::level_enum level, Style style) {
  if (style == Style::plain) return "[%Y-%m-%d %H:%M:%S.%e] [%l] %v";
  if (level < spdlog::level::warn) return "%H:%M:%S %v";
  return std::string(level == spdlog::level::warn ? "%H:%M:%S \033[33m" : "%H:%M:%S \033[31m") + "%l: %v\033[0m";
}

class ScreenSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit ScreenSink(std::shared_ptr<io::Screen> screen) : screen_(std::move(screen)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    spdlog::pattern_formatter(pattern_of(message.level, screen_->style()), spdlog::pattern_time_type::local, "").format(message, text);
    screen_->line(std::string(text.data(), text.size()));
  }
  void flush_() override {}

 private:
  std::shared_ptr<io::Screen> screen_;
};

}  // namespace

void log_to(const std::shared_ptr<io::Screen>& screen) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("", std::make_shared<ScreenSink>(screen)));
}

}  // namespace trainerd::core
