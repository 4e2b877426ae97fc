#include "tests/kernels/simt/device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <utility>

namespace trainerd::test::simt {
namespace {

/// Device buffers: first address to bytes; and the number of open accesses.
std::map<std::uintptr_t, std::size_t> pages;
int open_accesses = 0;

void protect(std::uintptr_t begin, std::size_t bytes, int how) {
  if (::mprotect(reinterpret_cast<void*>(begin), bytes, how) != 0) std::abort();
}

void protect_all(int how) {
  for (const auto& [begin, bytes] : pages) protect(begin, bytes, how);
}

}  // namespace

kernels::Buffer device_buffer(kernels::Buffer memory) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  std::byte* const data = memory.data();
  const auto at = reinterpret_cast<std::uintptr_t>(data), begin = at / page * page;
  const auto end = at + static_cast<std::uintptr_t>(kernels::align_up(memory.bytes()));
  const std::size_t bytes = (end - begin + page - 1) / page * page;
  const std::int64_t size = memory.bytes();
  if (bytes > 0) pages[begin] = bytes;
  if (bytes > 0 && open_accesses == 0) protect(begin, bytes, PROT_NONE);
  auto held = std::make_shared<kernels::Buffer>(std::move(memory));
  return {data, size, [held, begin]() mutable {
            pages.erase(begin);
            held.reset();
          }};
}

DeviceAccess::DeviceAccess() {
  if (open_accesses++ == 0) protect_all(PROT_READ | PROT_WRITE);
}

DeviceAccess::~DeviceAccess() {
  if (--open_accesses == 0) protect_all(PROT_NONE);
}

}  // namespace trainerd::test::simt
