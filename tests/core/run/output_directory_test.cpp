#include "core/run/agent/output_directory.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>

#include "tests/core/run/log_lines.h"
#include "tests/io/temp_dir.h"

using namespace trainerd;
using core::run::OutputDirectory;

TEST_CASE("the output of an earlier run that was moved aside comes back unless the run begins", "[output]") {
  const test::TempDir dir;
  const std::string path = dir / "out";
  const test::LogLines log;
  const auto aside = [&] {
    std::optional<OutputDirectory> output;
    output.emplace(path, OutputDirectory::Earlier::moved_aside);
    test::write_file(output->log(0), "new\n");
    return output;
  };
  { const OutputDirectory first(path); }
  test::write_file(path + "/steps.jsonl", "1\n");

  std::string moved = aside()->moved_to();
  CHECK_FALSE(std::filesystem::exists(moved));
  CHECK(std::filesystem::exists(path + "/steps.jsonl"));
  CHECK_FALSE(std::filesystem::exists(path + "/run.log"));
  CHECK(log.text() ==
        "info: the run did not begin: the output of the earlier run is at " + path + " again\n");

  auto begun = aside();
  begun->begin();
  moved = begun->moved_to();
  begun.reset();
  CHECK(std::filesystem::exists(moved + "/steps.jsonl"));
  CHECK(std::filesystem::exists(path + "/run.log"));

  auto lost = aside();
  moved = lost->moved_to();
  std::filesystem::remove_all(moved);
  lost.reset();
  CHECK(std::filesystem::exists(path + "/run.log"));
  CHECK(log.text().find("warning: the output of the earlier run was not put back from " + moved +
                        ": it is not there any more") != std::string::npos);
}
