#include "core/run/agent/discovery_file.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/core/run/log_lines.h"
#include "tests/io/temp_dir.h"

using namespace trainerd::core;
using namespace trainerd;
using trainerd::test::message_of;
using trainerd::test::read_file;
using trainerd::test::TempDir;
using trainerd::test::write_file;

namespace {

run::MetricsTarget discovery_target(const std::string& address) {
  return {.address = address, .run = "r", .node = 1};
}
nlohmann::json target_group(const std::string& path) {
  const nlohmann::json groups = nlohmann::json::parse(read_file(path));
  REQUIRE(groups.size() == 1);
  return groups[0];
}
std::string this_host() {
  std::string name(256, '\0');
  REQUIRE(::gethostname(name.data(), name.size() - 1) == 0);
  return name.c_str();
}

}  // namespace

TEST_CASE("a discovery file is a target of Prometheus while the run lasts") {
  const TempDir dir;
  std::filesystem::create_directory(dir / "output");
  const std::string record = run::discovery_record(dir / "output", 1), id = run::discovery_id("r", 1);
  CHECK(id == "r-node1-" + this_host() + "-" + std::to_string(::getpid()));
  const std::string path = dir / "new/discovery/" + id + ".json";
  {
    const run::DiscoveryFile file(dir / "new/discovery", id, record, discovery_target("127.0.0.1:40123"));
    CHECK(file.path() == path);
    const nlohmann::json group = target_group(path);
    CHECK(group.at("targets") == nlohmann::json::array({"127.0.0.1:40123"}));
    CHECK(group.at("labels") ==
          nlohmann::json{{"run", "r"}, {"node", "1"}, {"__metrics_path__", "/" + id + "/metrics"}});
    CHECK(read_file(record) == path);
  }
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK_FALSE(std::filesystem::exists(record));
}

TEST_CASE("an address of every interface is written as the host's name") {
  for (const char* address : {"0.0.0.0:9464", "[::]:9464"}) {
    const nlohmann::json groups = nlohmann::json::parse(run::target_text(discovery_target(address)));
    CHECK(groups[0].at("targets") == nlohmann::json::array({this_host() + ":9464"}));
  }
}

TEST_CASE("the discovery file of a failed run stays and says how it ended, until the next run removes it") {
  const TempDir dir;
  std::filesystem::create_directory(dir / "output");
  const std::string record = run::discovery_record(dir / "output", 1), path = dir / "d/x.json";
  {
    run::DiscoveryFile file(dir / "d", "x", record, discovery_target("127.0.0.1:1"));
    file.leave(base::ErrorKind::diverged);
  }
  CHECK(target_group(path).at("labels").at("ended") == "diverged");
  write_file(dir / "d/other.json", "[]");
  run::remove_left_discovery_files(dir / "output");
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK_FALSE(std::filesystem::exists(record));
  CHECK(std::filesystem::exists(dir / "d/other.json"));
  // A missing file or directory is no error.
  write_file(record, path);
  run::remove_left_discovery_files(dir / "output");
  CHECK_FALSE(std::filesystem::exists(record));
  run::remove_left_discovery_files(dir / "nothing");
  std::filesystem::create_directory(dir / "d/y.json");
  write_file(record, dir / "d/y.json");
  const trainerd::test::LogLines log;
  run::remove_left_discovery_files(dir / "output");
  CHECK(std::filesystem::exists(record));
  CHECK_THAT(log.text(), Catch::StartsWith("warning: " + (dir / "d/y.json") +
                                           ", which an earlier run left, cannot be removed: "));
}

TEST_CASE("a discovery directory that cannot be written is refused by its key and path") {
  const TempDir dir;
  std::filesystem::create_directory(dir / "output");
  write_file(dir / "file", "");
  const std::string record = run::discovery_record(dir / "output", 0);
  const std::string message = message_of<base::SpecError>(
      [&] { const run::DiscoveryFile file(dir / "file/d", "x", record, discovery_target("127.0.0.1:1")); });
  CHECK(
      message.starts_with("metrics.discovery: cannot make " + (dir / "file/d") + ": Not a directory; give"));
  std::filesystem::create_directories(dir / "d/x.json.partial/in the way");
  CHECK(message_of<base::SpecError>([&] {
          const run::DiscoveryFile file(dir / "d", "x", record, discovery_target("127.0.0.1:1"));
        }).starts_with("metrics.discovery: cannot write " + (dir / "d/x.json") + ": "));
  CHECK_FALSE(std::filesystem::exists(record));
}
