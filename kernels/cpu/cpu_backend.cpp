#include "kernels/cpu/cpu_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/base/clock.h"
#include "kernels/cpu/gemm_cache.h"
#include "kernels/cpu/kernel_tables.h"
#include "kernels/cpu/streaming_copy.h"
#include "kernels/cpu/tiling/blocks.h"

namespace trainerd::kernels {
namespace {

constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
// Bytes per block of a copy or fill.
constexpr std::int64_t kCopyBlock = std::int64_t{256} << 10;

/// Throws unless this build and this machine support the target's instruction set.
const Target& checked(const Target& target, const base::ThreadPool& pool) {
  base::check(target.kind == DeviceKind::cpu, "a CPU backend was asked for another kind of device");
  base::check(target.threads == pool.threads(), "the thread pool must have as many threads as the target");
  if (const Isa here = detect_cpu(1).isa; target.isa > here)
    throw base::device_error(std::string("the kernels for ") + to_string(target.isa) +
                             " do not run here: this CPU, as oneDNN may use it, has " + to_string(here));
  return target;
}

class CpuEvent final : public Event {
 public:
  double seconds = 0;
  bool recorded = false;
};

base::CapacityError no_memory(std::int64_t bytes, int error) {
  return base::capacity_error("the machine gave no memory for " + std::to_string(bytes) + " bytes (" +
                              base::errno_text(error) + "): free memory or make the job smaller");
}

void copy_bytes(base::ThreadPool& pool, std::byte* to, const std::byte* from, std::int64_t bytes) {
  for_each_block(pool, bytes, kCopyBlock, [&](std::int64_t begin, std::int64_t end) {
    std::memmove(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  });
}

}  // namespace

CpuBackend::CpuBackend(const Target& target, base::ThreadPool& pool)
    : target_(checked(target, pool)),
      pool_(pool),
      vector_(vector_kernels_of(target.isa)),
      attention_(attention_kernels_of(target.isa)),
      gemms_(std::make_unique<GemmCache>(target)) {}

CpuBackend::~CpuBackend() = default;

BackendCounters CpuBackend::counters() const {
  return {.widened_gemms = widened_gemms_, .reference_gemms = reference_gemms_};
}

// [guard page | pages of the buffer | guard page]. The buffer ends at the rear guard, up to rounding to 64
// bytes, so that accesses past either end of it fault. The end of a large buffer is aligned to a huge page,
// so that all of it but a partial first page can use huge pages.
Buffer CpuBackend::allocate(MemoryKind, std::int64_t bytes) {
  base::check(bytes >= 0, "a negative number of bytes was asked for");
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t size = align_up(bytes), pages = std::max(page, align_up(size, page));
  const bool huge = pages >= 2 * kHugePage;
  const std::int64_t reserved = pages + 2 * page + (huge ? kHugePage : 0);
  void* mapping =
      ::mmap(nullptr, static_cast<std::size_t>(reserved), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw no_memory(bytes, errno);
  auto* const base = static_cast<std::byte*>(mapping);
  std::byte* end = base + page + pages;
  if (huge) {
    const auto at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(end));
    end += align_up(at, kHugePage) - at;
  }
  if (::mprotect(end - pages, static_cast<std::size_t>(pages), PROT_READ | PROT_WRITE) != 0) {
    const int error = errno;
    ::munmap(base, static_cast<std::size_t>(reserved));
    throw no_memory(bytes, error);
  }
  // Only advice: without huge pages the first touch is slower, nothing else.
  if (huge) ::madvise(end - pages, static_cast<std::size_t>(pages), MADV_HUGEPAGE);
  return {end - size, bytes, [base, reserved] { ::munmap(base, static_cast<std::size_t>(reserved)); }};
}

void CpuBackend::copy(Stream&, const Tensor& from, const Tensor& to) {
  base::check(from.dtype == to.dtype && from.numel() == to.numel(), "copy: both of one dtype and size");
  copy_bytes(pool_, to.data, from.data, from.bytes());
}

void CpuBackend::fill_zero(Stream&, const Tensor& x) {
  for_each_block(pool_, x.bytes(), kCopyBlock, [&](std::int64_t begin, std::int64_t end) {
    std::memset(x.data + begin, 0, static_cast<std::size_t>(end - begin));
  });
}

// The thread pool is only for the thread that made the backend, so the calling thread copies alone.
void CpuBackend::transfer(Stream&, const Tensor& from, const Tensor& to) {
  base::check(from.dtype == to.dtype && from.numel() == to.numel(), "transfer: both of one dtype and size");
  std::memmove(to.data, from.data, static_cast<std::size_t>(from.bytes()));
}

void CpuBackend::write(Stream&, std::span<const std::byte> from, const Tensor& to) {
  base::check(static_cast<std::int64_t>(from.size()) == to.bytes(), "write: as many bytes as the tensor has");
  copy_bytes(pool_, to.data, from.data(), to.bytes());
}

void CpuBackend::read_back(Stream&, const Tensor& from, std::span<std::byte> to) {
  base::check(static_cast<std::int64_t>(to.size()) == from.bytes(),
              "read back: as many bytes as the tensor has");
  for_each_block(pool_, from.bytes(), kCopyBlock, [&](std::int64_t begin, std::int64_t end) {
    streaming_copy(to.data() + begin, from.data + begin, end - begin);
  });
}

std::unique_ptr<Stream> CpuBackend::make_stream(std::string name, Arena* scratch) {
  return std::make_unique<Stream>(std::move(name), scratch);
}

std::unique_ptr<Event> CpuBackend::make_event() { return std::make_unique<CpuEvent>(); }

void CpuBackend::record(Stream&, Event& event) {
  auto& e = static_cast<CpuEvent&>(event);
  e.seconds = base::monotonic_seconds();
  e.recorded = true;
}

// Work is done when a call returns, so there is nothing to wait for.
void CpuBackend::wait(Stream&, const Event&) {}
void CpuBackend::wait_host(const Event&) {}

double CpuBackend::elapsed_seconds(const Event& from, const Event& to) {
  const auto& first = static_cast<const CpuEvent&>(from);
  const auto& second = static_cast<const CpuEvent&>(to);
  base::check(first.recorded && second.recorded, "elapsed: both events must have been recorded");
  return second.seconds - first.seconds;
}

}  // namespace trainerd::kernels
