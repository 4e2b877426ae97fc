#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::MemoryKind;

/// True if writing a byte at `at` ends the process.
bool write_faults(std::byte* at) {
  const pid_t child = ::fork();
  if (child == 0) {
    // The test framework's handlers would report the expected fault.
    ::signal(SIGSEGV, SIG_DFL);
    ::signal(SIGBUS, SIG_DFL);
    *const_cast<volatile std::byte*>(at) = std::byte{1};
    ::_exit(0);
  }
  REQUIRE(child > 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status);
}

}  // namespace

TEST_CASE("buffers are aligned, read as zero, and end at a guard page", "[backend]") {
  Machine m(kernels::Isa::portable, 1);
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{64}, std::int64_t{4096},
                                   std::int64_t{100000}, (std::int64_t{9} << 20) + 64}) {
    INFO(bytes << " bytes");
    const kernels::Buffer buffer = m.backend().allocate(MemoryKind::device, bytes);
    CHECK(buffer.bytes() == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % kernels::kAlignment == 0);
    CHECK(std::all_of(buffer.data(), buffer.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    CHECK_FALSE(write_faults(buffer.data()));
    CHECK_FALSE(write_faults(buffer.data() + bytes - 1));
    CHECK(write_faults(buffer.data() + kernels::align_up(bytes)));
  }
  // A buffer of whole pages also begins at a guard page.
  const kernels::Buffer pages = m.backend().allocate(MemoryKind::host, 8192);
  CHECK(write_faults(pages.data() - 1));
}

TEST_CASE("a large buffer ends on a huge-page boundary", "[backend]") {
  Machine m(kernels::Isa::portable, 1);
  const kernels::Buffer buffer = m.backend().allocate(MemoryKind::device, std::int64_t{16} << 20);
  CHECK(reinterpret_cast<std::uintptr_t>(buffer.data() + buffer.bytes()) % (2u << 20) == 0);
}

TEST_CASE("memory that the machine does not have is a capacity error", "[backend]") {
  Machine m(kernels::Isa::portable, 1);
  CHECK_THROWS_AS(m.backend().allocate(MemoryKind::device, std::int64_t{1} << 50), base::CapacityError);
}

TEST_CASE("write, copy, fill and read back move every byte", "[backend]") {
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{1000003}}) {
    Machine m(kernels::Isa::portable, 3);
    std::vector<std::byte> bytes(static_cast<std::size_t>(n)), back(bytes.size(), std::byte{9});
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 256);
    const Tensor x = m.empty(DType::u8, {n}), y = m.empty(DType::u8, {n});
    m.backend().write(m.stream(), bytes, x);
    m.backend().copy(m.stream(), x, y);
    m.backend().read_back(m.stream(), y, back);
    CHECK(back == bytes);
    m.backend().fill_zero(m.stream(), y);
    m.backend().read_back(m.stream(), y, back);
    CHECK(back == std::vector<std::byte>(bytes.size(), std::byte{0}));
    m.backend().read_back(m.stream(), x, back);
    CHECK(back == bytes);
    CHECK_THROWS_AS(m.backend().copy(m.stream(), x, m.empty(DType::u8, {n + 1})), std::logic_error);
  }
}

TEST_CASE("events measure the time between them", "[backend]") {
  Machine m(kernels::Isa::portable, 1);
  const auto first = m.backend().make_event(), second = m.backend().make_event();
  CHECK_THROWS_AS(m.backend().elapsed_seconds(*first, *second), std::logic_error);
  m.backend().record(m.stream(), *first);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  m.backend().record(m.stream(), *second);
  CHECK(m.backend().elapsed_seconds(*first, *second) >= 0.005);
  CHECK(m.backend().elapsed_seconds(*second, *first) <= -0.005);
}

TEST_CASE("a backend refuses a pool of another size than its target's", "[backend]") {
  base::ThreadPool pool(2);
  kernels::Target target;
  target.threads = 3;
  CHECK_THROWS_AS(kernels::CpuBackend(target, pool), std::logic_error);
}

}  // namespace trainerd::test
