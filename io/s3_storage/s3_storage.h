#pragma once

#include <memory>
#include <string>

#include "io/s3/client.h"
#include "io/storage/storage.h"

namespace trainerd::io {

/// Objects below s3://bucket/prefix as files. A folder exists if an object lies in it; none is made. Files of
/// more than 8 MiB are uploaded in parts, four at once, each with its checksum. An interrupted copy
/// continues: parts with the same size and MD5 are not sent again, if the store's ETags are MD5 (not with
/// custom encryption keys). Files are read by ranges, small ones through blocks of 2 MiB, of which 32 MiB are
/// cached. Thread-safe.
class S3Storage final : public Storage {
 public:
  /// Throws SpecError for an invalid URI, or if libcurl is missing.
  S3Storage(const std::string& uri, S3Settings settings);

  std::string path_of(const std::string& name) const override;
  void make_folder(const std::string&) override {}
  std::vector<std::string> list(const std::string& name) const override;
  bool exists(const std::string& name) const override;
  void write(const std::string& name, std::span<const std::byte> bytes, const Wanted& wanted = {}) override;
  /// `pace` is called from several threads.
  std::int64_t copy(const std::string& name, const StoredFile& from, const Pace& pace) override;
  std::unique_ptr<StoredFile> open(const std::string& name) const override;
  void remove(const std::string& name) override;
  void sync_folder(const std::string&) override {}
  void stop() override;

  S3Counters counters() const;

  struct State;

 private:
  std::shared_ptr<State> state_;  ///< shared with open files
};

/// Returns a function that opens s3:// storages with the settings of `find`.
OpenRemote remote_storages(FindS3 find);

/// Returns the part size for a file: at least 8 MiB, and large enough for at most 9,000 parts.
std::int64_t part_bytes_of(std::int64_t file_bytes);

}  // namespace trainerd::io
