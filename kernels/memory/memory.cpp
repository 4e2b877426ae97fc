#include "kernels/memory/memory.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace trainerd::kernels {
namespace {

// Capacity of a dry arena: beyond any machine, and far enough below 2^63 that sums over regions do not
// overflow.
constexpr std::int64_t kDryBytes = std::int64_t{1} << 52;

constexpr std::size_t index_of(MemoryTerm term) { return static_cast<std::size_t>(term); }

/// Bytes of a tensor; none if they do not fit in 63 bits.
std::optional<std::int64_t> checked_bytes(DType dtype, const Shape& shape) {
  std::int64_t bytes = shape.ndim == 0 ? 0 : size_of(dtype);
  for (int i = 0; i < shape.ndim; ++i)
    if (__builtin_mul_overflow(bytes, shape[i], &bytes)) return std::nullopt;
  return bytes;
}

}  // namespace

const char* to_string(MemoryTerm term) {
  switch (term) {
    case MemoryTerm::parameters: return "parameters";
    case MemoryTerm::prepared_weights: return "prepared_weights";
    case MemoryTerm::gradients: return "gradients";
    case MemoryTerm::master_weights: return "master_weights";
    case MemoryTerm::moments: return "moments";
    case MemoryTerm::activations: return "activations";
    case MemoryTerm::logits: return "logits";
    case MemoryTerm::workspace: return "workspace";
    case MemoryTerm::batch: return "batch";
    case MemoryTerm::control: return "control";
    case MemoryTerm::count_: break;
  }
  return "?";
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (release_) release_();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    release_ = std::exchange(other.release_, nullptr);
  }
  return *this;
}

Buffer::~Buffer() {
  if (release_) release_();
}

Arena::Arena(std::string name, std::byte* base, std::int64_t capacity, std::int64_t alignment)
    : name_(std::move(name)), base_(base), capacity_(capacity), alignment_(alignment) {
  taken_.reserve(256);
}

Arena Arena::dry(std::string name, std::int64_t alignment) {
  // Base is not null, so that an address of a dry run is never mistaken for an undefined tensor.
  return {std::move(name), reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40), kDryBytes, alignment};
}

std::byte* Arena::take_bytes(std::int64_t bytes, MemoryTerm term) {
  base::check(bytes >= 0, "a negative number of bytes was asked for");
  if (bytes > kDryBytes || (capacity_ == kDryBytes && align_up(bytes, alignment_) > capacity_ - top_))
    throw base::capacity_error("the job does not fit: region " + name_ + " would hold " +
                               std::to_string(top_) + " bytes and then " + std::to_string(bytes) +
                               " more; make the model, batch.micro or model.seq_len smaller");
  const std::int64_t size = align_up(bytes, alignment_);
  if (size > capacity_ - top_)
    throw base::capacity_error("region " + name_ + " holds " + std::to_string(capacity_) +
                               " bytes by plan; " + std::to_string(top_ + size) + " are asked for");
  std::byte* at = base_ + top_;
  taken_.push_back({top_, size, term});
  top_ += size;
  terms_[index_of(term)] += size;
  if (top_ > high_water_) {
    high_water_ = top_;
    peak_terms_ = terms_;
  }
  return at;
}

Tensor Arena::take(DType dtype, const Shape& shape, MemoryTerm term) {
  const std::optional<std::int64_t> bytes = checked_bytes(dtype, shape);
  if (!bytes)
    throw base::capacity_error(
        "the job does not fit: a tensor of " + to_string(shape) + " in region " + name_ +
        " has more bytes than 63 bits count; make the model, batch.micro or model.seq_len smaller");
  return {take_bytes(*bytes, term), dtype, shape};
}

void Arena::release(Mark mark) {
  while (!taken_.empty() && taken_.back().begin >= mark) {
    terms_[index_of(taken_.back().term)] -= taken_.back().bytes;
    taken_.pop_back();
  }
  top_ = std::min(top_, mark);
}

std::int64_t MemoryBudget::total_bytes() const {
  std::int64_t total = 0;
  for (const Region& region : regions) total += region.kind == RegionKind::host ? 0 : region.bytes;
  return total;
}

std::int64_t MemoryBudget::host_bytes() const {
  std::int64_t total = 0;
  for (const Region& region : regions) total += region.kind == RegionKind::host ? region.bytes : 0;
  return total;
}

bool MemoryBudget::has(const std::string& region) const {
  return std::any_of(regions.begin(), regions.end(), [&](const Region& r) { return r.name == region; });
}

std::int64_t MemoryBudget::bytes_of(const std::string& name) const {
  for (const Region& region : regions)
    if (region.name == name) return region.bytes;
  throw std::logic_error("no region named " + name + " in the memory plan");
}

}  // namespace trainerd::kernels
