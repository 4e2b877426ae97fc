#pragma once

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/storage/file_errors.h"
#include "io/storage/storage.h"

namespace trainerd::test {

/// A storage whose process is killed: after `left` changes every operation fails. The last change is only
/// half done, if that is possible.
class Mortal final : public io::Storage {
 public:
  Mortal(std::shared_ptr<io::Storage> whole, int left) : whole_(std::move(whole)), left_(left) {}
  bool dead() const { return left_ <= 0; }

  std::string path_of(const std::string& name) const override { return whole_->path_of(name); }
  void make_folder(const std::string& name) override {
    change();
    whole_->make_folder(name);
  }
  std::vector<std::string> list(const std::string& name) const override { return look().list(name); }
  bool exists(const std::string& name) const override { return look().exists(name); }
  void write(const std::string& name, std::span<const std::byte> bytes, const io::Wanted& = {}) override {
    if (left_ == 1) whole_->write(name, bytes.first(bytes.size() / 2));
    change();
    whole_->write(name, bytes);
  }
  std::int64_t copy(const std::string& name, const io::StoredFile& from, const io::Pace& pace) override {
    if (left_ == 1) {
      std::vector<std::byte> half(static_cast<std::size_t>(from.bytes() / 2));
      from.read(0, half);
      whole_->remove(name);
      whole_->write(name, half);
    }
    change();
    return whole_->copy(name, from, pace);
  }
  std::unique_ptr<io::StoredFile> open(const std::string& name) const override { return look().open(name); }
  void remove(const std::string& name) override {
    if (left_ == 1) {  // removes only the names in the second half; a marker sorts first, so it stays
      const std::vector<std::string> names = whole_->list(name);
      for (std::size_t i = (names.size() + 1) / 2; i < names.size(); ++i)
        whole_->remove(name + "/" + names[i]);
    }
    change();
    whole_->remove(name);
  }
  void sync_folder(const std::string& name) override {
    change();
    whole_->sync_folder(name);
  }

 private:
  const io::Storage& look() const {
    if (dead()) fail();
    return *whole_;
  }
  void change() {
    if (--left_ <= 0) fail();
  }
  [[noreturn]] static void fail() { throw io::StorageError("killed", EIO); }
  std::shared_ptr<io::Storage> whole_;
  int left_;
};

}  // namespace trainerd::test
