#pragma once

#include <memory>
#include <string>

namespace trainerd::test {

/// What is logged while it lives, by any thread: in place of standard output, to which the log goes again
/// after it.
class LogLines {
 public:
  LogLines();
  ~LogLines();
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  /// "warning: the text" per line, without the time; the further lines of a text as they are.
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::test
