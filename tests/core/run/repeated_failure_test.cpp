#include "core/run/supervise/repeated_failure.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "core/run/agent/failure_file.h"
#include "tests/io/temp_dir.h"

using namespace trainerd::core::run;

TEST_CASE("the same crash in the same step is found, another one and another step are not", "[supervise]") {
  RepeatedFailure failures;
  const auto ends = [&](const char* what, std::int64_t step) {
    return failures.add({.what = what, .own = true}, step).ends();
  };
  CHECK_FALSE(ends("rank 1 by signal 11", 12));
  CHECK_FALSE(ends("rank 2 by signal 11", 12));
  CHECK_FALSE(ends("rank 1 by signal 7", 12));
  CHECK(ends("rank 1 by signal 11", 12));
  CHECK_FALSE(ends("rank 1 by signal 11", 13));
  CHECK(ends("rank 1 by signal 11", 13));
  CHECK_FALSE(failures.add(failed_device(1), 13).ends());
  CHECK(
      failures.add(failed_device(1), 13).again() ==
      "rank 1 by a failure of its device in step 13 is what ended the attempt before too, so the workers do "
      "not start again: ");
  CHECK(is_crash(SIGSEGV));
  CHECK_FALSE(is_crash(SIGKILL));
  CHECK_FALSE(is_crash(SIGTERM));
  CHECK_FALSE(is_crash(0));
}

TEST_CASE("a failure from outside ends the run the third time at one place without progress", "[supervise]") {
  RepeatedFailure failures;
  const FailureCause killed{.what = "rank 1 by signal 9 (Killed)"},
      other{.what = "rank 0 by signal 9 (Killed)"};
  CHECK(failures.add(killed, 12).evidence() ==
        "rank 1 by signal 9 (Killed) in step 12: 1 of 3 times there without a new step in between");
  CHECK_FALSE(failures.add(killed, 12).ends());
  // Failures without a place or of another rank are no progress.
  CHECK_FALSE(failures.add({}, 12).ends());
  CHECK_FALSE(failures.add(other, 12).ends());
  const CountedFailure third = failures.add(killed, 12);
  CHECK(third.ends());
  CHECK(third.reason() ==
        "rank 1 by signal 9 (Killed) in step 12 has ended 3 attempts without a new step in between, so the "
        "workers do not start again: look for what does that there, for example a limit of memory");
  // Steps 12 to 14 were completed in between. The rank's own crash is still remembered.
  CHECK_FALSE(failures.add({.what = "rank 1 by signal 11", .own = true}, 12).ends());
  CHECK(failures.add({}, 15).evidence().empty());
  CHECK(failures.add(killed, 12).times == 1);
  CHECK(failures.add({.what = "rank 1 by signal 11", .own = true}, 12).ends());
}

TEST_CASE("failures of an earlier run count in the next one, except those of completed steps",
          "[supervise]") {
  trainerd::test::TempDir dir;
  const std::string path = dir.path() + "/failures.json";
  const FailureCause reset{.what = kFailedCommunication, .own = true},
      killed{.what = "rank 1 by signal 9 (Killed)"};
  RepeatedFailure first;
  CHECK(restore_failures(first, path, 0).empty());
  CHECK(first.none());
  first.add(killed, 12);
  CHECK(first.add(reset, 12).times == 1);
  CHECK(first.add(reset, 12).earlier == 0);
  REQUIRE(write_failures(first, path).empty());

  RepeatedFailure next;
  CHECK(restore_failures(next, path, 11).empty());
  const CountedFailure third = next.add(reset, 12);
  CHECK((third.ends() && third.times == CountedFailure::kMaxInAllRuns && third.earlier == 2));
  CHECK(next.add(killed, 12).times == 2);
  CHECK(next.add(killed, 13).earlier == 0);
  // The next run resumes from a checkpoint of step 12.
  RepeatedFailure later;
  CHECK(restore_failures(later, path, 12).empty());
  CHECK(later.none());

  std::ofstream(path) << "[{]";
  CHECK_THAT(restore_failures(later, path, 0),
             Catch::StartsWith(path + ", which counts the failures of earlier runs, cannot be read: ") &&
                 Catch::EndsWith("; failures are counted anew"));
  CHECK_THAT(write_failures(first, dir.path() + "/gone/failures.json"),
             Catch::EndsWith("; a later run of the job does not know of this failure"));
}
