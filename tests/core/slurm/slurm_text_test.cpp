#include "core/slurm/slurm_text.h"

#include <catch2/catch.hpp>

using namespace trainerd::core;

// Texts are from Slurm 22.05, plus the forms in its manual pages.

TEST_CASE("the number of a submitted job is read", "[slurm]") {
  CHECK(slurm::job_number("17\n") == "17");
  CHECK(slurm::job_number("17;other\n") == "17");
  CHECK(slurm::job_number("Submitted batch job 17\n").empty());
  CHECK(slurm::job_number("17x").empty());
  CHECK(slurm::job_number("").empty());
}

TEST_CASE("time limits are read in each of sbatch's forms", "[slurm]") {
  for (const auto& [text, seconds] : std::map<std::string, double>{{"90", 5400},
                                                                   {"1:30", 90},
                                                                   {"2:00:00", 7200},
                                                                   {"2-03", 183600},
                                                                   {"1-00:30", 88200},
                                                                   {"1-01:02:03", 90123}}) {
    INFO(text);
    CHECK(slurm::read_time_limit(text) == seconds);
  }
  for (const char* text :
       {"", "0", "0:00", "UNLIMITED", "-1", "1-", "1:", "1:2:3:4", "1-2:3:4:5", "1h", "1.5", " 5"}) {
    INFO(text);
    CHECK_FALSE(slurm::read_time_limit(text));
  }
}

TEST_CASE("states of jobs and of the tasks of an array are read", "[slurm]") {
  const auto states = slurm::read_job_states("17_0 RUNNING\n17_1 PENDING\n18 COMPLETED\n");
  CHECK(states ==
        std::map<std::string, std::string>{{"17_0", "RUNNING"}, {"17_1", "PENDING"}, {"18", "COMPLETED"}});
  CHECK(slurm::read_job_states("").empty());
}

TEST_CASE("the smallest value of all nodes counts", "[slurm]") {
  const auto least = [](const std::string& text) {
    const slurm::SlurmNodes nodes = slurm::read_nodes(text);
    return std::pair(nodes.cpus, nodes.gpus);
  };
  CHECK(least("64 (null)\n") == std::pair<std::int64_t, std::int64_t>(64, 0));
  CHECK(least("224 gpu:h100:8(S:0-1),nvme:1\n112 gpu:8\n") == std::pair<std::int64_t, std::int64_t>(112, 8));
  CHECK(least("64 gpu:a100:2(S:0,1),gpu:v100:4\n64+ gpu:6\n") ==
        std::pair<std::int64_t, std::int64_t>(64, 6));
  CHECK(least("64 gpu\n").second == 1);
  CHECK(least("64 gpu:8\n32 (null)\n") == std::pair<std::int64_t, std::int64_t>(32, 0));
  CHECK(least("64 gpumem:8\n").second == 0);
  CHECK(least("").first == 0);
}

TEST_CASE("a node's address is read", "[slurm]") {
  CHECK(slurm::read_node_address(
            "NodeName=gpu1 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=gpu1 Port=6818\n") == "10.0.0.7");
  CHECK_FALSE(slurm::read_node_address("NodeName=gpu1 NodeAddr= NodeHostName=gpu1").has_value());
  CHECK_FALSE(slurm::read_node_address("").has_value());
}
