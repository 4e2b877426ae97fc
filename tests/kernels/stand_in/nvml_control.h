#pragma once

#include <dlfcn.h>

#include <catch2/catch.hpp>

namespace trainerd::test {

/// Changes the first device of the stand-in for NVML (nvml.cpp) in this process; at its end the device is as
/// before.
class NvmlControl {
 public:
  NvmlControl() {
    void* library = ::dlopen(TRAINERD_STAND_IN_NVML, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    REQUIRE(library != nullptr);
    xid_ = reinterpret_cast<void (*)(unsigned long long)>(::dlsym(library, "stand_in_xid"));
    set_ = reinterpret_cast<Set>(::dlsym(library, "stand_in_set"));
    REQUIRE(xid_ != nullptr);
    REQUIRE(set_ != nullptr);
  }
  ~NvmlControl() { set({}); }
  NvmlControl(const NvmlControl&) = delete;
  NvmlControl& operator=(const NvmlControl&) = delete;

  struct State {
    unsigned long long ecc_errors = 2, throttle_reasons = 0x4, replays = 5;
    bool lost = false;
  };
  void set(const State& s) const { set_(s.ecc_errors, s.throttle_reasons, s.replays, s.lost ? 1 : 0); }
  void xid(unsigned long long number) const { xid_(number); }

 private:
  using Set = void (*)(unsigned long long, unsigned long long, unsigned long long, int);
  void (*xid_)(unsigned long long) = nullptr;
  Set set_ = nullptr;
};

}  // namespace trainerd::test
