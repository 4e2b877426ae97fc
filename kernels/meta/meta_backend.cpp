#include "kernels/meta/meta_backend.h"

#include <algorithm>

namespace trainerd::kernels {

MetaBackend::MetaBackend(const Target& target, std::function<void(const MetaCall&)> observe)
    : target_(target), observe_(std::move(observe)) {}

Buffer MetaBackend::allocate(MemoryKind, std::int64_t bytes) {
  return {reinterpret_cast<std::byte*>(std::uintptr_t{1} << 41), bytes, {}};
}

void MetaBackend::copy(Stream& s, const Tensor& from, const Tensor& to) {
  base::check(from.dtype == to.dtype && from.numel() == to.numel(),
              "a copy is between equal dtypes and sizes");
  note(s, Operator::copy, {0, 2.0 * static_cast<double>(from.bytes())}, 0);
}

void MetaBackend::fill_zero(Stream& s, const Tensor& x) {
  note(s, Operator::fill_zero, {0, static_cast<double>(x.bytes())}, 0);
}

void MetaBackend::write(Stream& s, std::span<const std::byte> from, const Tensor& to) {
  base::check(static_cast<std::int64_t>(from.size()) == to.bytes(), "a write fills its tensor");
  note(s, Operator::write, {0, static_cast<double>(to.bytes())}, 0);
}

void MetaBackend::write_made(Stream& s, std::span<const Tensor> to, std::vector<std::byte>&,
                             const std::function<void(std::span<std::byte>)>&) {
  for (const Tensor& t : to) note(s, Operator::write, {0, static_cast<double>(t.bytes())}, 0);
}

// Values read back are zero: finite, so they stop nothing.
void MetaBackend::read_back(Stream& s, const Tensor& from, std::span<std::byte> to) {
  base::check(static_cast<std::int64_t>(to.size()) == from.bytes(), "a read back takes the whole tensor");
  std::fill(to.begin(), to.end(), std::byte{0});
  note(s, Operator::read_back, {0, static_cast<double>(from.bytes())}, 0);
}

std::unique_ptr<Stream> MetaBackend::make_stream(std::string name, Arena* scratch) {
  return std::make_unique<Stream>(std::move(name), scratch);
}

std::unique_ptr<Event> MetaBackend::make_event() { return std::make_unique<Event>(); }

void MetaBackend::note(const Stream& stream, Operator op, const Cost& cost, std::int64_t scratch,
                       const OpClass& what) {
  if (observe_) observe_({op, stream.name(), cost, scratch, what});
}

}  // namespace trainerd::kernels
