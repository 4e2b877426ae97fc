#include "io/hash/hash.h"

#include <xxhash.h>

#include <new>

namespace trainerd::io {
namespace {

std::string to_hex(XXH128_hash_t hash) {
  XXH128_canonical_t canonical{};
  XXH128_canonicalFromHash(&canonical, hash);
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

/// XXH3's own allocator gives the state its alignment.
class XxhState {
 public:
  XxhState() : state_(XXH3_createState(), XXH3_freeState) {
    if (!state_) throw std::bad_alloc();
  }
  XXH3_state_t* get() const { return state_.get(); }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

}  // namespace

struct Xxh3::State {
  XxhState xxh;
  State() { XXH3_128bits_reset(xxh.get()); }
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) {}
Xxh3::~Xxh3() = default;
void Xxh3::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh.get(), bytes.data(), bytes.size());
}
std::string Xxh3::hex() const { return to_hex(XXH3_128bits_digest(state_->xxh.get())); }

std::string xxh3_hex(std::span<const std::byte> bytes) {
  return to_hex(XXH3_128bits(bytes.data(), bytes.size()));
}

struct Xxh3Of64::State {
  XxhState xxh;
  State() { XXH3_64bits_reset(xxh.get()); }
};

Xxh3Of64::Xxh3Of64() : state_(std::make_unique<State>()) {}
Xxh3Of64::~Xxh3Of64() = default;
void Xxh3Of64::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh.get(), bytes.data(), bytes.size());
}
std::uint64_t Xxh3Of64::value() const { return XXH3_64bits_digest(state_->xxh.get()); }

std::uint64_t xxh3_64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace trainerd::io
