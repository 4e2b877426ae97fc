#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/storage/storage.h"

namespace trainerd::core::run {

/// A storage that calls `guard` before each change and each piece of a copy; `guard` throws to prevent it. It
/// protects the files from an agent that was frozen and may have been replaced. Reads are not guarded.
class GuardedStorage final : public io::Storage {
 public:
  GuardedStorage(std::shared_ptr<io::Storage> inner, std::function<void()> guard)
      : inner_(std::move(inner)), guard_(std::move(guard)) {}

  std::string path_of(const std::string& name) const override { return inner_->path_of(name); }
  void make_folder(const std::string& name) override {
    guard_();
    inner_->make_folder(name);
  }
  std::vector<std::string> list(const std::string& name) const override { return inner_->list(name); }
  bool exists(const std::string& name) const override { return inner_->exists(name); }
  void write(const std::string& name, std::span<const std::byte> bytes,
             const io::Wanted& wanted = {}) override {
    guard_();
    inner_->write(name, bytes, wanted);
  }
  std::int64_t copy(const std::string& name, const io::StoredFile& from, const io::Pace& pace) override {
    guard_();
    return inner_->copy(name, from, [&](std::int64_t bytes) {
      guard_();
      if (pace) pace(bytes);
    });
  }
  std::unique_ptr<io::StoredFile> open(const std::string& name) const override { return inner_->open(name); }
  void remove(const std::string& name) override {
    guard_();
    inner_->remove(name);
  }
  void sync_folder(const std::string& name) override { inner_->sync_folder(name); }
  void stop() override { inner_->stop(); }

 private:
  std::shared_ptr<io::Storage> inner_;
  std::function<void()> guard_;
};

}  // namespace trainerd::core::run
