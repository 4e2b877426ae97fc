#include "parallel/layout/topology.h"

#include <sched.h>

#include <algorithm>
#include <catch2/catch.hpp>

namespace trainerd::parallel {
namespace {

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  REQUIRE(::sched_getaffinity(0, sizeof(set), &set) == 0);
  return CPU_COUNT(&set);
}

TEST_CASE("this machine is one node whose cores its devices share", "[topology]") {
  const Topology whole = detect_topology(0);
  CHECK(whole.devices() == 1);
  CHECK(whole.device.threads == usable_cores());
  CHECK(whole.nvlink_domain == 0);
  CHECK(whole.node_memory_bytes > (1LL << 28));
  const Topology shared = detect_topology(0, 2);
  CHECK(shared.devices() == 2);
  CHECK(shared.device.threads == std::max(1, usable_cores() / 2));
}

TEST_CASE("more devices than cores have one thread each, and an explicit number of threads is used",
          "[topology]") {
  CHECK(detect_topology(0, 100000).device.threads == 1);
  CHECK(detect_topology(3, 4).device.threads == 3);
}

}  // namespace
}  // namespace trainerd::parallel
