#pragma once

#include <memory>
#include <string>
#include <utility>

#include "io/storage/storage.h"

namespace trainerd::io {

/// A folder of a storage, used as a storage.
class Subfolder final : public Storage {
 public:
  Subfolder(std::shared_ptr<Storage> whole, std::string folder)
      : whole_(std::move(whole)), folder_(std::move(folder)) {}

  std::string path_of(const std::string& name) const override { return whole_->path_of(in(name)); }
  void make_folder(const std::string& name) override { whole_->make_folder(in(name)); }
  std::vector<std::string> list(const std::string& name) const override { return whole_->list(in(name)); }
  bool exists(const std::string& name) const override { return whole_->exists(in(name)); }
  void write(const std::string& name, std::span<const std::byte> bytes, const Wanted& wanted = {}) override {
    whole_->write(in(name), bytes, wanted);
  }
  std::int64_t copy(const std::string& name, const StoredFile& from, const Pace& pace) override {
    return whole_->copy(in(name), from, pace);
  }
  std::unique_ptr<StoredFile> open(const std::string& name) const override { return whole_->open(in(name)); }
  void remove(const std::string& name) override { whole_->remove(in(name)); }
  void sync_folder(const std::string& name) override { whole_->sync_folder(in(name)); }
  void stop() override { whole_->stop(); }

 private:
  std::string in(const std::string& name) const { return name.empty() ? folder_ : folder_ + "/" + name; }
  std::shared_ptr<Storage> whole_;
  std::string folder_;
};

}  // namespace trainerd::io
