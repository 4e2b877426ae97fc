#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace trainerd::parallel {

/// Where ranks that do not know each other yet leave notes: keys are set once and stay. Any thread.
class Store {
 public:
  virtual ~Store() = default;
  /// Throws CommError when the store cannot be reached.
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
  /// The value once there is one; none after `seconds`.
  virtual std::optional<std::string> wait(const std::string& key, double seconds);
};

/// The value of `key`, once there is one. Throws CommError when there is none after `deadline_seconds`.
std::string wait_for(Store& store, const std::string& key, double deadline_seconds);

/// Returns when members 0 to size - 1 have all met under `name`. Throws CommError after `deadline_seconds`,
/// naming the ranks that did not join.
void meet(Store& store, const std::string& name, std::int64_t member, std::int64_t size,
          double deadline_seconds);

/// Another store below a prefix of its keys: worlds that follow each other share a store without sharing
/// keys.
class PrefixStore final : public Store {
 public:
  /// `store` outlives this.
  PrefixStore(Store& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::string& value) override { store_.set(prefix_ + key, value); }
  std::optional<std::string> get(const std::string& key) override { return store_.get(prefix_ + key); }
  std::optional<std::string> wait(const std::string& key, double seconds) override {
    return store_.wait(prefix_ + key, seconds);
  }

 private:
  Store& store_;
  std::string prefix_;
};

/// A store in a directory that all ranks see. A second run needs a fresh one.
class FileStore final : public Store {
 public:
  /// The directory exists.
  explicit FileStore(std::string directory) : directory_(std::move(directory)) {}
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key) override;

 private:
  std::string path_of(const std::string& key) const;
  std::string directory_;
};

}  // namespace trainerd::parallel
