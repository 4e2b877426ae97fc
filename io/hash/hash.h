#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace trainerd::io {

/// 128-bit XXH3 (https://xxhash.com), the checksum of checkpoint files. It detects damage, not tampering.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;
  void update(std::span<const std::byte> bytes);
  /// Hash of all bytes so far, as 32 hex digits in the canonical (big-endian) order that `xxhsum -H2` prints.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Hash of one block of bytes.
std::string xxh3_hex(std::span<const std::byte> bytes);

/// 64-bit XXH3, used for the many tensors of a shard.
class Xxh3Of64 {
 public:
  Xxh3Of64();
  ~Xxh3Of64();
  Xxh3Of64(const Xxh3Of64&) = delete;
  Xxh3Of64& operator=(const Xxh3Of64&) = delete;
  void update(std::span<const std::byte> bytes);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::uint64_t xxh3_64(std::span<const std::byte> bytes);

}  // namespace trainerd::io
