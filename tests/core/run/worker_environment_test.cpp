// What an agent adds to the environment of its workers.

#include "core/run/worker/worker_environment.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>

#include "kernels/base/error.h"
#include "tests/core/train_support.h"

using namespace trainerd;
using Variables = std::map<std::string, std::string>;

namespace {

core::job::JobSpec nccl_job(std::int64_t dp) {
  core::job::JobSpec job = test::small_job();
  job.device = core::job::DeviceChoice::cuda;
  job.parallel.dp = dp;
  return job;
}

}  // namespace

TEST_CASE("workers that use NCCL get its variables, and others none", "[worker_environment]") {
  const Variables nccl{{"CUDA_DEVICE_MAX_CONNECTIONS", "32"}, {"CUDA_MODULE_LOADING", "EAGER"}};
  CHECK(core::run::worker_variables(nccl_job(2), "") == nccl);
  CHECK(core::run::worker_variables(nccl_job(1), "").empty());
  core::job::JobSpec staged = nccl_job(2);
  staged.cluster.communication = parallel::Communication::staged;
  CHECK(core::run::worker_variables(staged, "").empty());
  // A CPU job does not even look up the interface.
  CHECK(core::run::worker_variables(test::small_job(), "no-such-host.invalid").empty());
}

TEST_CASE("an interface, by name or by address, reaches NCCL by its exact name", "[worker_environment]") {
  for (const char* given : {"lo", "127.0.0.1"})
    CHECK(core::run::worker_variables(nccl_job(2), given).at("NCCL_SOCKET_IFNAME") == "=lo");
  CHECK_FALSE(core::run::worker_variables(nccl_job(2), "127.0.1.1").contains("NCCL_SOCKET_IFNAME"));
  CHECK_THROWS_AS(core::run::worker_variables(nccl_job(2), "no-such-host.invalid"), base::CommError);
}

TEST_CASE("a variable that is already set is not changed", "[worker_environment]") {
  const std::array<const char*, 4> inherited{"HOME=/root", "CUDA_MODULE_LOADING=LAZY", "EMPTY=", nullptr};
  const std::vector<std::string> got = core::run::environment_with(
      inherited.data(), {{"CUDA_MODULE_LOADING", "EAGER"}, {"EMPTY", "1"}, {"NEW", "2"}});
  CHECK(got == std::vector<std::string>{"HOME=/root", "CUDA_MODULE_LOADING=LAZY", "EMPTY=", "NEW=2"});
}
