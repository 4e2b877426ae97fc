#pragma once

#include <memory>
#include <string>

#include "io/s3/client.h"
#include "io/storage/storage.h"

namespace trainerd::io {

/// Objects below s3://bucket/prefix as files. Folders are not made, and are there when an object is. Files of
/// more than 8 MiB go up in parts, four at once, each with its checksum; what a copy that was interrupted has
/// sent is known by size and MD5 and not sent again, where the store's ETags are MD5 (all do but those that
/// encrypt by keys of their own). Files are read by ranges, small ones through blocks of 2 MiB of which 32
/// MiB are kept. For several threads.
class S3Storage final : public Storage {
 public:
  /// Throws SpecError: no such URI, or no libcurl.
  S3Storage(const std::string& uri, S3Settings settings);

  std::string path_of(const std::string& name) const override;
  void make_folder(const std::string&) override {}
  std::vector<std::string> list(const std::string& name) const override;
  bool exists(const std::string& name) const override;
  void write(const std::string& name, std::span<const std::byte> bytes) override;
  /// `pace` is called by several threads.
  std::int64_t copy(const std::string& name, const StoredFile& from, const Pace& pace) override;
  std::unique_ptr<StoredFile> open(const std::string& name) const override;
  void remove(const std::string& name) override;
  void sync_folder(const std::string&) override {}
  void stop() override;

  S3Counters counters() const;

  struct State;

 private:
  std::shared_ptr<State> state_;  ///< files that are open share it
};

/// Opens storages at s3:// as `find` says that the store is reached.
OpenRemote remote_storages(FindS3 find);

/// Of a file of so many bytes: at least 8 MiB, and so that 9,000 parts suffice.
std::int64_t part_bytes_of(std::int64_t file_bytes);

}  // namespace trainerd::io
