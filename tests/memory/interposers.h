#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace trainerd::test {

/// Allocations over this are counted while `armed`.
constexpr std::size_t kLarge = 64 << 10;
inline std::atomic<bool> armed{false};
inline std::atomic<std::int64_t> large_allocations{0};
inline std::atomic<std::int64_t> largest{0};

}  // namespace trainerd::test
