#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace trainerd::parallel {

/// Key-value store in which ranks find each other. A key is set once and stays. Any thread.
class Store {
 public:
  virtual ~Store() = default;
  /// Throws CommError when the store cannot be reached.
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
  /// The value once it exists; none after `seconds`.
  virtual std::optional<std::string> wait(const std::string& key, double seconds);
};

/// The value of `key` once it exists. Throws CommError after `deadline_seconds`.
std::string wait_for(Store& store, const std::string& key, double deadline_seconds);

/// Returns when members 0 to size - 1 have all called it with `name`. Throws CommError after
/// `deadline_seconds`, which names the ranks that did not join.
void meet(Store& store, const std::string& name, std::int64_t member, std::int64_t size,
          double deadline_seconds);

/// A view of another store that prefixes all keys. Consecutive worlds use it to share a store without sharing
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

/// A store in a directory that all ranks can access. Each run needs a new directory.
class FileStore final : public Store {
 public:
  /// The directory must exist.
  explicit FileStore(std::string directory) : directory_(std::move(directory)) {}
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key) override;

 private:
  std::string path_of(const std::string& key) const;
  std::string directory_;
};

}  // namespace trainerd::parallel
