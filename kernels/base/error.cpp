#include "kernels/base/error.h"

#include <array>
#include <cstring>
#include <utility>

namespace trainerd::base {
namespace {

constexpr std::array<std::pair<ErrorKind, const char*>, 7> kKinds{{{ErrorKind::spec, "spec"},
                                                                   {ErrorKind::capacity, "capacity"},
                                                                   {ErrorKind::data, "data"},
                                                                   {ErrorKind::checkpoint, "checkpoint"},
                                                                   {ErrorKind::comm, "comm"},
                                                                   {ErrorKind::diverged, "diverged"},
                                                                   {ErrorKind::device, "device"}}};

}  // namespace

const char* to_string(ErrorKind kind) {
  for (const auto& [k, word] : kKinds)
    if (k == kind) return word;
  return "unknown";
}

bool parse_error_kind(const std::string& word, ErrorKind& kind) {
  for (const auto& [k, w] : kKinds)
    if (word == w) {
      kind = k;
      return true;
    }
  return false;
}

SpecError spec_error(std::string m, std::source_location w) { return {ErrorKind::spec, m, w}; }
CapacityError capacity_error(std::string m, std::source_location w) { return {ErrorKind::capacity, m, w}; }
DataError data_error(std::string m, std::source_location w) { return {ErrorKind::data, m, w}; }
CheckpointError checkpoint_error(std::string m, std::source_location w) {
  return {ErrorKind::checkpoint, m, w};
}
CommError comm_error(std::string m, std::source_location w) { return {ErrorKind::comm, m, w}; }
DivergedError diverged_error(std::string m, std::source_location w) { return {ErrorKind::diverged, m, w}; }
DeviceError device_error(std::string m, std::source_location w) { return {ErrorKind::device, m, w}; }

void throw_error(ErrorKind kind, const std::string& message, std::source_location where) {
  switch (kind) {
    case ErrorKind::spec: throw spec_error(message, where);
    case ErrorKind::capacity: throw capacity_error(message, where);
    case ErrorKind::data: throw data_error(message, where);
    case ErrorKind::checkpoint: throw checkpoint_error(message, where);
    case ErrorKind::comm: throw comm_error(message, where);
    case ErrorKind::diverged: throw diverged_error(message, where);
    case ErrorKind::device: throw device_error(message, where);
  }
  throw std::logic_error("unknown error kind: " + message);
}

std::string errno_text(int error_number) {
  std::array<char, 256> text{};
  return strerror_r(error_number, text.data(), text.size());
}

void check(bool invariant, const char* what, std::source_location where) {
  if (!invariant)
    throw std::logic_error(std::string(what) + " (" + where.file_name() + ":" + std::to_string(where.line()) +
                           ")");
}

}  // namespace trainerd::base
