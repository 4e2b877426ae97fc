#include "io/tracking/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "io/otlp/protobuf.h"
#include "io/storage/file_errors.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kMaxWaiting = std::size_t{16} << 20;
constexpr double kPauseSeconds = 1;
constexpr const char* kPrefix = "events.out.tfevents.";

constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
    table[i] = crc;
  }
  return table;
}();

void add_little_endian(std::string& to, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to += static_cast<char>((value >> (8 * i)) & 0xff);
}

// TFRecord masks checksums, because a CRC of data that contains CRCs is weak.
std::uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8U; }

// Field numbers.
constexpr unsigned kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
                   kEventSessionLog = 7;
constexpr unsigned kSessionLogStatus = 1, kSummaryValue = 1, kValueTag = 1, kValueSimpleValue = 2;
constexpr std::uint64_t kSessionStart = 1;

ProtobufWriter event_head(double wall_time, std::int64_t step) {
  ProtobufWriter event;
  event.add_double(kEventWallTime, wall_time);
  event.add_varint(kEventStep, static_cast<std::uint64_t>(step));
  return event;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Returns the time (seconds) in the name of the newest event file; 0 if there is none.
std::int64_t newest_time(const std::string& folder) {
  std::int64_t newest = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix))
      newest = std::max<std::int64_t>(newest, std::atoll(name.c_str() + std::string_view(kPrefix).size()));
  }
  return newest;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char c : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::string tf_record(std::string_view bytes) {
  std::string record;
  add_little_endian(record, bytes.size(), 8);
  add_little_endian(record, masked_crc(record), 4);
  record += bytes;
  add_little_endian(record, masked_crc(bytes), 4);
  return record;
}

std::string version_event(double wall_time) {
  ProtobufWriter event;
  event.add_double(kEventWallTime, wall_time);
  event.add_bytes(kEventFileVersion, "brain.Event:2");
  return event.text();
}

std::string start_event(double wall_time, std::int64_t step) {
  ProtobufWriter event = event_head(wall_time, step), log;
  log.add_varint(kSessionLogStatus, kSessionStart);
  event.add_message(kEventSessionLog, log);
  return event.text();
}

std::string scalars_event(double wall_time, std::int64_t step,
                          const std::vector<std::pair<std::string, double>>& scalars) {
  ProtobufWriter event = event_head(wall_time, step), summary;
  for (const auto& [tag, number] : scalars) {
    ProtobufWriter value;
    value.add_bytes(kValueTag, tag);
    value.add_float(kValueSimpleValue, static_cast<float>(number));
    summary.add_message(kSummaryValue, value);
  }
  event.add_message(kEventSummary, summary);
  return event.text();
}

EventFile::EventFile(const std::string& folder, double wall_time) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw output_error(folder, "make", error.value());
  const std::int64_t now = std::max(static_cast<std::int64_t>(wall_time), newest_time(folder) + 1);
  path_ = fmt::format("{}/{}{:010}.{}.{}", folder, kPrefix, now, host_name(), ::getpid());
  fd_ = base::open_append(path_);
  if (!fd_) throw open_error(path_, errno);
  append(version_event(wall_time));
}

void EventFile::append(const std::string& event) {
  const std::string record = tf_record(event);
  if (waiting_.size() + record.size() > kMaxWaiting) {
    ++record_.dropped;
    return;
  }
  waiting_ += record;
  ++record_.waiting;
  if (base::monotonic_seconds() >= next_try_) write_waiting();
}

void EventFile::write_waiting() {
  std::size_t written = 0;
  while (written < waiting_.size()) {
    const ssize_t n = ::write(fd_.get(), waiting_.data() + written, waiting_.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      ++record_.failures;
      record_.error = base::errno_text(errno);
      next_try_ = base::monotonic_seconds() + kPauseSeconds;
      break;
    }
    written += static_cast<std::size_t>(n);
  }
  // A partly written record continues where it was cut off.
  waiting_.erase(0, written);
  if (!waiting_.empty()) return;
  record_.waiting = 0;
  record_.error.clear();
}

bool EventFile::finish(double seconds) {
  const double end = base::monotonic_seconds() + seconds;
  for (;;) {
    write_waiting();
    if (waiting_.empty() || base::monotonic_seconds() >= end) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  record_.dropped += record_.waiting;
  record_.waiting = 0;
  waiting_.clear();
  return record_.dropped == 0;
}

}  // namespace trainerd::io
