#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "io/storage/storage.h"

namespace trainerd::io {

/// Makes a storage fail on purpose (fault injection). Thread-safe.
class StorageFault {
 public:
  /// Makes operations fail for the next `seconds`.
  void fail_for(double seconds);
  bool fails() const;

 private:
  std::atomic<double> until_{0};  ///< monotonic clock, seconds
};

/// Wraps `inner`. Operations fail with the errno value `error` while `fault` is active.
class FailingStorage final : public Storage {
 public:
  enum class Fails : std::uint8_t { writes, all };
  FailingStorage(std::shared_ptr<Storage> inner, std::shared_ptr<const StorageFault> fault, Fails fails,
                 int error)
      : inner_(std::move(inner)), fault_(std::move(fault)), fails_(fails), error_(error) {}

  std::string path_of(const std::string& name) const override { return inner_->path_of(name); }
  void make_folder(const std::string& name) override;
  std::vector<std::string> list(const std::string& name) const override;
  bool exists(const std::string& name) const override;
  void write(const std::string& name, std::span<const std::byte> bytes, const Wanted& wanted = {}) override;
  std::int64_t copy(const std::string& name, const StoredFile& from, const Pace& pace) override;
  std::unique_ptr<StoredFile> open(const std::string& name) const override;
  void remove(const std::string& name) override;
  void sync_folder(const std::string& name) override { inner_->sync_folder(name); }
  void stop() override { inner_->stop(); }

 private:
  enum class Doing : std::uint8_t { write, other };
  void require_whole(const std::string& name, const char* what, Doing doing) const;

  std::shared_ptr<Storage> inner_;
  std::shared_ptr<const StorageFault> fault_;
  Fails fails_;
  int error_;
};

}  // namespace trainerd::io
