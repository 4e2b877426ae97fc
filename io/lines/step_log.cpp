#include "io/lines/step_log.h"

#include "kernels/base/error.h"

namespace trainerd::io {

StepLogPrefix read_step_lines(const std::string& path, std::int64_t last_step, const StepOfLine& step_of,
                              const std::function<void()>& visit) {
  StepLogPrefix prefix;
  std::int64_t number = 0, bytes = 0;
  read_log_lines(path, [&](const std::string& line, bool torn) {
    ++number;
    bytes += static_cast<std::int64_t>(line.size()) + (torn ? 0 : 1);
    std::int64_t step = 0;
    try {
      step = step_of(line);
    } catch (const base::DataError&) {
      if (!torn) prefix.garbled.push_back({number, line});
      return true;
    }
    if (step > last_step) return false;
    visit();
    prefix.bytes = bytes;
    prefix.last_line = number;
    prefix.newline_missing = torn;
    return true;
  });
  return prefix;
}

StepLogPrefix read_step_log(const std::string& path, std::int64_t last_step,
                            const std::function<void(const StepRecord&)>& visit) {
  StepRecord record;
  return read_step_lines(
      path, last_step,
      [&record](const std::string& line) {
        record = parse_step_record(line);
        return record.step;
      },
      [&] { visit(record); });
}

}  // namespace trainerd::io
