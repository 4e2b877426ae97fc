#pragma once

#include <string>

#include "io/storage/storage.h"

namespace trainerd::io {

/// Files below a directory of a local (or mounted) file system.
class LocalStorage : public Storage {
 public:
  explicit LocalStorage(std::string root) : root_(std::move(root)) {}

  std::string path_of(const std::string& name) const override;
  void make_folder(const std::string& name) override;
  std::vector<std::string> list(const std::string& name) const override;
  bool exists(const std::string& name) const override;
  void write(const std::string& name, std::span<const std::byte> bytes, const Wanted& wanted = {}) override;
  std::int64_t copy(const std::string& name, const StoredFile& from, const Pace& pace) override;
  std::unique_ptr<StoredFile> open(const std::string& name) const override;
  void remove(const std::string& name) override;
  void sync_folder(const std::string& name) override;
  /// Atomic; `to` must not exist as a folder with content.
  void rename(const std::string& from, const std::string& to);

 private:
  std::string root_;
};

}  // namespace trainerd::io
