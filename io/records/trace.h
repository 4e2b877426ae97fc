#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trainerd::io {

/// A time range on one row of one process of a trace. Slices of a row do not overlap.
struct TraceSlice {
  std::string name;  ///< viewers choose the colour by it
  std::string category;
  std::int64_t process = 0, row = 0;
  double start_seconds = 0, seconds = 0;
  std::vector<std::pair<std::string, std::int64_t>> numbers =
      {};                  ///< displayed with it: chunk, microbatch, bytes
  std::string label = {};  ///< displayed with it; empty: none
};

struct TraceRow {
  std::int64_t process = 0, row = 0;
  std::string name;
};
struct TraceProcess {
  std::int64_t process = 0;
  std::string name;
};

/// Timeline of a step, measured or simulated.
struct Trace {
  std::vector<TraceProcess> processes;
  std::vector<TraceRow> rows;
  std::vector<TraceSlice> slices;
};

/// Writes the trace in Chrome's JSON format ("JSON Array Format" of the Trace Event Format) for Perfetto and
/// chrome://tracing: complete events, in microseconds with three decimals.
std::string to_chrome_json(const Trace& trace);

}  // namespace trainerd::io
