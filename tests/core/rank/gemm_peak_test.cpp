#include "core/rank/gemm_peak.h"

#include <catch2/catch.hpp>

namespace trainerd::core {

TEST_CASE("a measured peak that a step exceeds is measured again", "[gemm-peak]") {
  int measured = 0;
  rank::PeakRate peak(100, [&] { return ++measured, 150.0; });
  CHECK_FALSE(peak.raise_to(100));
  CHECK(measured == 0);
  CHECK(peak.raise_to(124));
  CHECK(measured == 1);
  CHECK(peak.flops_per_second() == 150);
  CHECK_FALSE(peak.raise_to(140));
  CHECK(measured == 1);
}

TEST_CASE("a peak that rises often is told when it has risen by a quarter", "[gemm-peak]") {
  rank::PeakRate peak(100, [] { return 1.0; });
  CHECK(peak.raise_to(110));
  CHECK(peak.worth_telling());
  CHECK(peak.raise_to(130));
  CHECK_FALSE(peak.worth_telling());
  CHECK(peak.raise_to(138));
  CHECK(peak.worth_telling());
}

TEST_CASE("no step is above the peak, whatever is measured", "[gemm-peak]") {
  rank::PeakRate peak(100, [] { return 90.0; });
  CHECK(peak.raise_to(124));
  CHECK(peak.flops_per_second() == 124);
}

TEST_CASE("a vendor's figure does not change, nor does an unknown one", "[gemm-peak]") {
  rank::PeakRate given(100, nullptr), unknown(0, [] { return 1.0; });
  CHECK_FALSE(given.raise_to(124));
  CHECK(given.flops_per_second() == 100);
  CHECK_FALSE(given.measured());
  CHECK_FALSE(unknown.raise_to(124));
  CHECK(unknown.flops_per_second() == 0);
}

}  // namespace trainerd::core
