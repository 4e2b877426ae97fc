#include "io/records/trace.h"

#include <cmath>
#include <map>

#include "io/text/json.h"

namespace trainerd::io {
namespace {

using Json = nlohmann::ordered_json;

/// Rounded to nanoseconds, so that adjacent slices stay adjacent.
double microseconds(double seconds) { return std::round(seconds * 1e9) / 1e3; }

/// Colour names of chrome://tracing; Perfetto chooses colours by name itself.
const char* color_of(const std::string& name) {
  static const std::map<std::string, const char*> colors{{"forward", "rail_load"},
                                                         {"input gradient", "thread_state_iowait"},
                                                         {"weight gradient", "thread_state_running"},
                                                         {"backward", "thread_state_iowait"},
                                                         {"bubble", "grey"}};
  const auto found = colors.find(name);
  return found == colors.end() ? nullptr : found->second;
}

Json metadata(const char* kind, std::int64_t process, Json row, Json args) {
  Json event{{"name", kind}, {"ph", "M"}, {"pid", process}};
  if (!row.is_null()) event["tid"] = std::move(row);
  event["args"] = std::move(args);
  return event;
}

}  // namespace

std::string to_chrome_json(const Trace& trace) {
  // One event per line: a trace may be long, and this keeps the file readable.
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  bool first = true;
  const auto put = [&](const Json& event) {
    text += (first ? "" : ",\n") + to_text(event);
    first = false;
  };
  for (const TraceProcess& p : trace.processes) {
    put(metadata("process_name", p.process, nullptr, {{"name", p.name}}));
    put(metadata("process_sort_index", p.process, nullptr, {{"sort_index", p.process}}));
  }
  for (const TraceRow& r : trace.rows) {
    put(metadata("thread_name", r.process, r.row, {{"name", r.name}}));
    put(metadata("thread_sort_index", r.process, r.row, {{"sort_index", r.row}}));
  }
  for (const TraceSlice& s : trace.slices) {
    const double start = microseconds(s.start_seconds), end = microseconds(s.start_seconds + s.seconds);
    Json event{{"name", s.name},
               {"cat", s.category},
               {"ph", "X"},
               {"pid", s.process},
               {"tid", s.row},
               {"ts", start},
               {"dur", std::round((end - start) * 1e3) / 1e3}};
    if (const char* color = color_of(s.name)) event["cname"] = color;
    Json args = Json::object();
    for (const auto& [key, value] : s.numbers) args[key] = value;
    if (!s.label.empty()) args["label"] = s.label;
    if (!args.empty()) event["args"] = std::move(args);
    put(event);
  }
  return text + "\n]}\n";
}

}  // namespace trainerd::io
