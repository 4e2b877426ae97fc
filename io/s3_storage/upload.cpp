#include "io/s3_storage/upload.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "io/s3_storage/s3_storage.h"

namespace trainerd::io {
namespace {

constexpr std::int64_t kMinPart = std::int64_t{8} << 20, kUploadParts = 9'000;
constexpr std::int64_t kInFlight = 4;

using Md5 = std::array<unsigned char, 16>;

// Returns none if this machine's libcrypto forbids MD5. Then nothing is known to be uploaded, and all is
// sent.
std::optional<Md5> md5_of(std::span<const std::byte> bytes) {
  Md5 digest{};
  unsigned int size = 0;
  if (::EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_md5(), nullptr) != 1)
    return std::nullopt;
  return digest;
}

std::string hex(const Md5& digest) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string without_quotes(std::string etag) {
  std::erase(etag, '"');
  return etag;
}

/// A file divided into upload parts.
struct Parts {
  const StoredFile& file;
  std::int64_t part_bytes = part_bytes_of(file.bytes());

  std::int64_t count() const {
    return std::max<std::int64_t>(1, (file.bytes() + part_bytes - 1) / part_bytes);
  }
  std::int64_t bytes(std::int64_t part) const {
    return std::min(part_bytes, file.bytes() - part * part_bytes);
  }
  std::span<const std::byte> read(std::int64_t part, std::vector<std::byte>& buffer) const {
    buffer.resize(static_cast<std::size_t>(bytes(part)));
    file.read(part * part_bytes, buffer);
    return buffer;
  }
};

// Returns the ETag that a store gives the file: the MD5 of a single part, or the MD5 of all parts' MD5 and
// their count.
std::string etag_of(const Parts& parts) {
  std::vector<std::byte> buffer, digests;
  for (std::int64_t part = 0; part < parts.count(); ++part) {
    const auto digest = md5_of(parts.read(part, buffer));
    if (!digest) return "";
    if (parts.count() == 1) return hex(*digest);
    const auto bytes = std::as_bytes(std::span(*digest));
    digests.insert(digests.end(), bytes.begin(), bytes.end());
  }
  return hex(*md5_of(digests)) + "-" + std::to_string(parts.count());
}

/// Sends the parts of one upload from several threads.
class Sending {
 public:
  Sending(S3Client& client, const S3Path& path, const Parts& parts, const Pace& pace)
      : client_(client), path_(path), parts_(parts), pace_(pace) {}

  // `there`: parts that an earlier attempt uploaded.
  std::int64_t send(const std::string& upload, const std::map<int, S3Part>& there) {
    etags_.assign(static_cast<std::size_t>(parts_.count()), "");
    std::vector<std::jthread> threads;
    for (std::int64_t i = 0; i < std::min(kInFlight, parts_.count()); ++i)
      threads.emplace_back([&] { serve(upload, there); });
    threads.clear();
    if (error_) std::rethrow_exception(error_);
    client_.complete_upload(path_, upload, etags_);
    return sent_;
  }

 private:
  void serve(const std::string& upload, const std::map<int, S3Part>& there) {
    try {
      std::vector<std::byte> buffer;
      for (std::int64_t part = next_++; part < parts_.count() && !failed_; part = next_++) {
        const int number = static_cast<int>(part) + 1;
        const std::span<const std::byte> bytes = parts_.read(part, buffer);
        std::string& etag = etags_[static_cast<std::size_t>(part)];
        if (const auto known = there.find(number);
            known != there.end() && known->second.bytes == parts_.bytes(part)) {
          const auto digest = md5_of(bytes);
          if (digest && without_quotes(known->second.etag) == hex(*digest)) {
            etag = known->second.etag;
            continue;
          }
        }
        if (pace_) pace_(parts_.bytes(part));
        etag = client_.upload_part(path_, upload, number, bytes);
        sent_ += parts_.bytes(part);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_ = true;
    }
  }

  S3Client& client_;
  const S3Path& path_;
  const Parts& parts_;
  const Pace& pace_;
  std::vector<std::string> etags_;
  std::atomic<std::int64_t> next_ = 0, sent_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::exception_ptr error_;
};

std::optional<std::string> unfinished_upload(S3Client& client, const S3Path& path) {
  std::optional<std::string> id;
  for (S3Upload& upload : client.uploads(path.bucket, path.key))
    if (upload.key == path.key) id = std::move(upload.id);
  return id;
}

std::int64_t send_in_parts(S3Client& client, const S3Path& path, const Parts& parts, const Pace& pace) {
  if (const auto upload = unfinished_upload(client, path)) {
    try {
      return Sending(client, path, parts, pace).send(*upload, client.parts(path, *upload));
    } catch (const S3Error& error) {
      if (error.kind != S3Error::Kind::absent) throw;  // it was removed meanwhile: begins another upload
    }
  }
  return Sending(client, path, parts, pace).send(client.begin_upload(path), {});
}

/// Removes unfinished uploads. A lost reply to begin_upload leaves an upload without parts.
void abort_uploads(S3Client& client, const S3Path& path) {
  for (const S3Upload& upload : client.uploads(path.bucket, path.key))
    if (upload.key == path.key) client.abort_upload(path, upload.id);
}

}  // namespace

std::int64_t part_bytes_of(std::int64_t file_bytes) {
  constexpr std::int64_t kUnit = std::int64_t{1} << 20;
  const std::int64_t least = (file_bytes + kUploadParts - 1) / kUploadParts;
  return std::max(kMinPart, (least + kUnit - 1) / kUnit * kUnit);
}

std::int64_t upload_file(S3Client& client, const S3Path& path, const StoredFile& from, const Pace& pace) {
  const Parts parts{from};
  if (const auto there = client.head(path); there && there->bytes == from.bytes())
    if (const std::string etag = etag_of(parts); !etag.empty() && without_quotes(there->etag) == etag)
      return 0;
  if (parts.count() > 1) {
    const std::int64_t sent = send_in_parts(client, path, parts, pace);
    abort_uploads(client, path);
    const auto there = client.head(path);
    if (!there || there->bytes != from.bytes())
      throw S3Error(S3Error::Kind::refused,
                    path.text() + ": cannot write: it has " + (there ? std::to_string(there->bytes) : "no") +
                        " bytes in the store, " + std::to_string(from.bytes()) + " were sent");
    return sent;
  }
  std::vector<std::byte> buffer;
  const std::span<const std::byte> bytes = parts.read(0, buffer);
  if (pace) pace(from.bytes());
  client.put(path, bytes);
  return from.bytes();
}

}  // namespace trainerd::io
