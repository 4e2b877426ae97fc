// Every allocation of the process goes through these.

#include "interposers.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

using namespace trainerd::test;

namespace {

void note(std::size_t bytes) {
  if (!armed.load(std::memory_order_relaxed) || bytes <= kLarge) return;
  ++large_allocations;
  largest = std::max<std::int64_t>(largest, static_cast<std::int64_t>(bytes));
}

}  // namespace

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) { return note(n), __libc_malloc(n); }
void* calloc(std::size_t n, std::size_t size) { return note(n * size), __libc_calloc(n, size); }
void* realloc(void* p, std::size_t n) { return note(n), __libc_realloc(p, n); }
void* memalign(std::size_t align, std::size_t n) { return note(n), __libc_memalign(align, n); }
void* aligned_alloc(std::size_t align, std::size_t n) { return note(n), __libc_memalign(align, n); }
int posix_memalign(void** out, std::size_t align, std::size_t n) {
  note(n);
  *out = __libc_memalign(align, n);
  return *out == nullptr ? ENOMEM : 0;
}
void* mmap(void* at, std::size_t n, int prot, int flags, int fd, off_t offset) {
  note(n);
  return reinterpret_cast<void*>(::syscall(SYS_mmap, at, n, prot, flags, fd, offset));
}
}
