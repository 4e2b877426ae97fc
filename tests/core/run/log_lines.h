#pragma once

#include <memory>
#include <string>

namespace trainerd::test {

/// Captures the log of all threads while it lives. The log then returns to standard output.
class LogLines {
 public:
  LogLines();
  ~LogLines();
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  /// One line "warning: the text" per record, without the time. Further lines of a text are unchanged.
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::test
