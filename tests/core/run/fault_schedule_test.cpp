// The faults that a run injects, each of them once.

#include "core/run/faults/fault_schedule.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "core/run/agent/fault_log.h"
#include "kernels/base/error.h"

using namespace trainerd;
using core::job::Fault;
using core::job::FaultKind;
using core::job::FaultsOptions;
using core::run::FaultSchedule;

namespace {

std::vector<std::string> ids(const std::vector<core::run::DueFault>& due) {
  std::vector<std::string> ids;
  for (const core::run::DueFault& d : due) ids.push_back(d.id);
  return ids;
}

std::string temporary(const std::string& name) {
  return (std::filesystem::temp_directory_path() / (name + "-" + std::to_string(::getpid()))).string();
}

}  // namespace

TEST_CASE("a fault is due once, at its step, and its id describes it", "[faults]") {
  FaultsOptions options{.allow = true};
  options.inject = {
      Fault{.kind = FaultKind::stop, .step = 4, .rank = 1}, Fault{.step = 3},
      Fault{.kind = FaultKind::stop, .step = 4, .rank = 1},
      Fault{.kind = FaultKind::flip_gradient, .step = 4, .tensor = "w", .element = 3, .bit = 2}};
  FaultSchedule plan(options, 2);
  CHECK(plan.due(1).empty());
  CHECK(ids(plan.due(3)) == std::vector<std::string>{"kill step 3 rank 0"});
  CHECK(ids(plan.due(4)) == std::vector<std::string>{"stop step 4 rank 1", "stop step 4 rank 1 #2",
                                                     "flip_gradient step 4 rank 0 tensor w element 3 bit 2"});
  plan.set_done("stop step 4 rank 1");
  CHECK(plan.due(4).size() == 2);
  // A fault inserted before the others does not repeat them.
  options.inject.insert(options.inject.begin(), Fault{.kind = FaultKind::hang, .step = 4});
  const FaultSchedule later(options, 2,
                            {"kill step 3 rank 0", "stop step 4 rank 1", "stop step 4 rank 1 #2"});
  CHECK(later.due(3).empty());
  CHECK(later.due(4).size() == 2);
}

TEST_CASE("random faults have the given rate, kinds and ranks, and repeat with the seed", "[faults]") {
  FaultsOptions options{.allow = true};
  options.random = {.seed = 5, .rate = 0.1, .kinds = {"kill", "slow"}};
  const FaultSchedule plan(options, 3), again(options, 3);
  options.random.seed = 6;
  const FaultSchedule other(options, 3);
  std::int64_t faults = 0, same = 0;
  std::set<std::int64_t> ranks;
  std::set<FaultKind> kinds;
  for (std::int64_t step = 1; step <= 10'000; ++step) {
    const auto due = plan.due(step);
    REQUIRE(due.size() <= 1);
    CHECK(ids(due) == ids(again.due(step)));
    if (due.empty()) continue;
    ++faults;
    same += other.due(step).empty() ? 0 : 1;
    ranks.insert(due[0].fault.rank);
    kinds.insert(due[0].fault.kind);
    CHECK(due[0].fault.step == step);
  }
  // 1000 expected, with a standard deviation of 30.
  CHECK((faults > 850 && faults < 1150));
  CHECK(same < 200);
  CHECK(ranks == std::set<std::int64_t>{0, 1, 2});
  CHECK(kinds == std::set<FaultKind>{FaultKind::kill, FaultKind::slow});
  options.random.rate = 1;
  FaultSchedule all(options, 3);
  const auto due = all.due(7);
  REQUIRE(due.size() == 1);
  all.set_done(due[0].id);
  CHECK(all.due(7).empty());
  // Also with fewer ranks, where the draw gives another rank.
  for (std::int64_t n = 1; n < 9; ++n) CHECK(FaultSchedule(options, n, {due[0].id}).due(7).empty());
}

TEST_CASE("the flipped bit is in the mantissa unless the fault names one", "[faults]") {
  CHECK(core::run::bit_to_flip(-1, 4) == 22);
  CHECK(core::run::bit_to_flip(-1, 2) == 6);
  CHECK(core::run::bit_to_flip(30, 4) == 30);
  CHECK(core::run::bit_to_flip(30, 2) == 15);
}

TEST_CASE("faults that were injected are kept in a file, whose unfinished last line is ignored", "[faults]") {
  const std::string path = temporary("faults-done");
  {
    core::run::FaultLog log(path);
    CHECK(log.done().empty());
    log.add("kill step 3 rank 0");
    log.add("stop step 4 rank 1");
  }
  std::ofstream(path, std::ios::app) << "hang st";
  const core::run::FaultLog log(path);
  CHECK(log.done() == std::vector<std::string>{"kill step 3 rank 0", "stop step 4 rank 1"});
  std::filesystem::remove(path);
}

TEST_CASE("the node of a fault's rank damages the first checkpoint from its step on", "[faults]") {
  FaultsOptions options{.allow = true};
  options.inject = {Fault{.kind = FaultKind::flip_checkpoint, .step = 4, .rank = 2},
                    Fault{.kind = FaultKind::flip_checkpoint, .step = 4, .rank = 0},
                    Fault{.step = 4, .rank = 2}};
  core::run::CheckpointFaults faults(options, 4, {});
  for (std::int64_t step = 1; step <= 3; ++step) faults.on_step(step, 2, 2);
  CHECK(faults.take(3).empty());
  faults.on_step(4, 2, 2);
  CHECK(faults.take(3).empty());  // step 3 was already being saved when the fault came due
  CHECK(ids(faults.take(5)) == std::vector<std::string>{"flip_checkpoint step 4 rank 2"});
  CHECK(faults.take(10).empty());
}

TEST_CASE("a bit of a file is flipped in place", "[faults]") {
  const std::string path = temporary("flipped");
  std::ofstream(path) << "abcde";
  CHECK(core::run::flip_bit_of_file(path) == "bit 0 of byte 2 of " + path);
  std::string text;
  std::ifstream(path) >> text;
  CHECK(text == "abbde");
  std::filesystem::remove(path);
  CHECK_THROWS_AS(core::run::flip_bit_of_file(path), base::CheckpointError);
  CHECK_THROWS_WITH(core::run::flip_bit_of_file(path),
                    path + ": cannot flip a bit: No such file or directory");
}
