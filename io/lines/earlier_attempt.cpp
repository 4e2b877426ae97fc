#include "io/lines/earlier_attempt.h"

#include <charconv>
#include <limits>
#include <string_view>
#include <variant>
#include <vector>

#include "io/lines/log_lines.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

/// Returns the step of a line written by `to_json_line`, without parsing the whole line; 0 if there is none.
std::int64_t step_at_the_front(std::string_view line) {
  constexpr std::string_view kFront = "{\"step\":";
  std::int64_t step = 0;
  if (line.starts_with(kFront)) std::from_chars(line.data() + kFront.size(), line.data() + line.size(), step);
  return step;
}

/// Returns the first number after `key`, without parsing the line; 0 if there is none.
double number_after(std::string_view line, std::string_view key) {
  double value = 0;
  if (const std::size_t at = line.find(key); at != std::string_view::npos)
    std::from_chars(line.data() + at + key.size(), line.data() + line.size(), value);
  return value;
}

bool begins_attempt(NoticeKind kind) {
  return kind == NoticeKind::start || kind == NoticeKind::resume || kind == NoticeKind::restart;
}
bool ends_attempt(NoticeKind kind) {
  return kind == NoticeKind::finish || kind == NoticeKind::stop || kind == NoticeKind::failure;
}
/// Quick check of the line's beginning, since most lines are evaluations and checkpoints.
bool may_begin_or_end(std::string_view line) {
  constexpr std::string_view kFront = "{\"event\":\"";
  if (!line.starts_with(kFront)) return false;
  const std::string_view rest = line.substr(kFront.size());
  return rest.starts_with("st") || rest.starts_with("re") || rest.starts_with("f");
}

std::optional<StepRecord> parsed(const std::string& line) {
  try {
    return parse_step_record(line);
  } catch (const base::DataError&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<EarlierAttempt> read_earlier_attempt(const std::string& steps_path, std::int64_t start_step) {
  std::optional<EarlierAttempt> earlier;
  std::string last_kept;
  read_log_lines(steps_path, [&](const std::string& line, bool) {
    const std::int64_t step = step_at_the_front(line);
    if (step > 0 && step <= start_step) {
      last_kept = line;
      return true;
    }
    const std::optional<StepRecord> lost = parsed(line);
    if (!lost || lost->step <= start_step) return true;
    if (!earlier) earlier.emplace();
    earlier->last_step = lost->step;
    earlier->lost_seconds += lost->step_seconds;
    earlier->wall_time = lost->wall_time;
    return true;
  });
  if (earlier) return earlier;
  if (const auto kept = parsed(last_kept))
    return EarlierAttempt{.last_step = kept->step, .lost_seconds = 0, .wall_time = kept->wall_time};
  return std::nullopt;
}

EarlierRun read_earlier_run(const std::string& steps_path, const std::string& events_path,
                            std::int64_t start_step) {
  EarlierRun earlier;
  bool asked = false;  // the latest attempt was ended on purpose
  std::vector<std::variant<NoticeRecord, EvaluationRecord>> events;  // events that split the wall time
  read_log_lines(events_path, [&](const std::string& line, bool) {
    if (!may_begin_or_end(line) && !line.starts_with("{\"event\":\"evaluation\"")) return true;
    try {
      const EventRecord event = parse_event_record(line);
      if (const auto* evaluation = std::get_if<EvaluationRecord>(&event)) events.emplace_back(*evaluation);
      const auto* notice = std::get_if<NoticeRecord>(&event);
      if (notice == nullptr) return true;
      events.emplace_back(*notice);
      if (ends_attempt(notice->kind)) {
        earlier.ended = true;
        asked = notice->kind != NoticeKind::failure;
      }
      if (!begins_attempt(notice->kind)) return true;
      if (earlier.attempts > 0 && !asked) ++earlier.interruptions;
      earlier.ended = asked = false;
      if (earlier.attempts++ == 0) earlier.began = notice->wall_time;
    } catch (const base::DataError&) {
      // A torn or invalid line names no attempt.
    }
    return true;
  });
  if (earlier.attempts > 0 && !asked) ++earlier.interruptions;
  std::size_t next = 0;
  const auto add_events_until = [&](double time) {
    for (; next < events.size(); ++next) {
      if (const auto* notice = std::get_if<NoticeRecord>(&events[next])) {
        if (notice->wall_time > time) return;
        add_to(earlier.wall, *notice);
      } else {
        const auto& evaluation = std::get<EvaluationRecord>(events[next]);
        if (evaluation.wall_time > time) return;
        earlier.wall.evaluation(evaluation.wall_time, evaluation.seconds);
      }
    }
  };
  read_log_lines(steps_path, [&](const std::string& line, bool) {
    const std::int64_t step = step_at_the_front(line);
    if (step <= 0 || step > start_step) return true;
    const double seconds = number_after(line, "\"step_seconds\":"),
                 save = number_after(line, "\"checkpoint\":"), end = number_after(line, "\"wall_time\":");
    earlier.useful_seconds += seconds - save;
    add_events_until(end);
    earlier.wall.step(step, end, seconds, save);
    return true;
  });
  add_events_until(std::numeric_limits<double>::infinity());
  return earlier;
}

}  // namespace trainerd::io
