#include "core/run/supervise/repeated_crash.h"

#include <catch2/catch.hpp>

using namespace trainerd::core::run;

TEST_CASE("the same crash in the same step is found, another one and another step are not", "[supervise]") {
  RepeatedCrash crashes;
  CHECK_FALSE(crashes.add("rank 1 by signal 11", 12));
  CHECK_FALSE(crashes.add("rank 2 by signal 11", 12));
  CHECK_FALSE(crashes.add("rank 1 by signal 7", 12));
  CHECK(crashes.add("rank 1 by signal 11", 12));
  CHECK_FALSE(crashes.add("rank 1 by signal 11", 13));
  CHECK(crashes.add("rank 1 by signal 11", 13));
  CHECK(is_crash(SIGSEGV));
  CHECK_FALSE(is_crash(SIGKILL));
  CHECK_FALSE(is_crash(SIGTERM));
  CHECK_FALSE(is_crash(0));
}
