#include "parallel/comm/rendezvous/store.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <span>
#include <thread>

#include "kernels/base/atomic_file.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"
#include "kernels/base/seconds_text.h"

namespace trainerd::parallel {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(5);

std::string here(const std::string& name, std::int64_t member) {
  return name + "/here/" + std::to_string(member);
}

}  // namespace

std::optional<std::string> Store::wait(const std::string& key, double seconds) {
  const double deadline = base::monotonic_seconds() + seconds;
  for (;;) {
    if (std::optional<std::string> value = get(key)) return value;
    if (base::monotonic_seconds() > deadline) return std::nullopt;
    std::this_thread::sleep_for(kPollInterval);
  }
}

std::string wait_for(Store& store, const std::string& key, double deadline_seconds) {
  if (std::optional<std::string> value = store.wait(key, deadline_seconds)) return *value;
  throw base::comm_error("nothing came to the rendezvous under " + key + " in " +
                         base::seconds_text(deadline_seconds) + "; see whether every node was started");
}

void meet(Store& store, const std::string& name, std::int64_t member, std::int64_t size,
          double deadline_seconds) {
  store.set(here(name, member), "here");
  const double deadline = base::monotonic_seconds() + deadline_seconds;
  std::string missing;
  for (std::int64_t i = 0; i < size; ++i)
    if (!store.wait(here(name, i), deadline - base::monotonic_seconds()))
      missing += (missing.empty() ? "" : ", ") + std::to_string(i);
  if (!missing.empty())
    throw base::comm_error("of the " + std::to_string(size) + " members of " + name +
                           " these did not come to the rendezvous in " +
                           base::seconds_text(deadline_seconds) + ": " + missing +
                           "; see whether they were started");
}

// Keys contain slashes and other characters that file names cannot have; those are written as %xx.
std::string FileStore::path_of(const std::string& key) const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string path = directory_ + "/";
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-' || c == '_') path += c;
    else path += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return path;
}

void FileStore::set(const std::string& key, const std::string& value) {
  if (const int error = base::write_file_atomically(path_of(key), std::as_bytes(std::span(value)));
      error != 0)
    throw base::comm_error("cannot write to the rendezvous directory " + directory_ + ": " +
                           base::errno_text(error));
}

std::optional<std::string> FileStore::get(const std::string& key) {
  const base::UniqueFd fd = base::open_read(path_of(key));
  if (!fd && errno == ENOENT) return std::nullopt;
  const std::int64_t bytes = fd ? base::file_bytes(fd.get()) : -1;
  std::string value(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 0)), '\0');
  if (bytes < 0 || base::read_at(fd.get(), std::as_writable_bytes(std::span(value)), 0) != bytes)
    throw base::comm_error("cannot read from the rendezvous directory " + directory_ + ": " +
                           base::errno_text(errno));
  return value;
}

}  // namespace trainerd::parallel
