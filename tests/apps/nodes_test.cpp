#include "apps/nodes.h"

#include <catch2/catch.hpp>
#include <map>

#include "kernels/base/error.h"

using namespace trainerd;
using namespace trainerd::apps;

namespace {

using Names = std::vector<std::string>;

Environment in(const std::map<std::string, std::string>& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

const std::map<std::string, std::string> kStep = {{"SLURM_JOB_ID", "4711"},
                                                  {"SLURM_STEP_ID", "0"},
                                                  {"SLURM_STEP_NUM_NODES", "3"},
                                                  {"SLURM_STEP_NUM_TASKS", "3"},
                                                  {"SLURM_STEP_NODELIST", "gpu[09-10],login"},
                                                  {"SLURM_NODEID", "1"}};

std::map<std::string, std::string> with(std::map<std::string, std::string> variables, const std::string& name,
                                        const std::string& value) {
  variables[name] = value;
  return variables;
}

}  // namespace

// The expected names are those that `scontrol show hostnames` gives.
TEST_CASE("host lists are expanded as Slurm does", "[nodes]") {
  CHECK(expand_host_list("login") == Names{"login"});
  CHECK(expand_host_list("gpu[1-3,07],login") == Names{"gpu1", "gpu2", "gpu3", "gpu07", "login"});
  CHECK(expand_host_list("gpu[008-011]") == Names{"gpu008", "gpu009", "gpu010", "gpu011"});
  CHECK(expand_host_list("gpu[98-101]") == Names{"gpu98", "gpu99", "gpu100", "gpu101"});
  CHECK(expand_host_list("a[1-2]b[0-1]") == Names{"a1b0", "a1b1", "a2b0", "a2b1"});
  CHECK(expand_host_list("a,b[2].site,c") == Names{"a", "b2.site", "c"});
  for (const char* bad : {"", ",", "a,", "gpu[", "gpu[1-]", "gpu[2-1]", "gpu[a-b]", "gpu[]", "[",
                          "gpu[0-9999999]", "a[0-999]b[0-999]", "gpu[1--2]", "gpu[1-99999999999999999999]"})
    CHECK_THROWS_AS(expand_host_list(bad), base::SpecError);
}

TEST_CASE("a job of one node needs nobody to say so", "[nodes]") {
  CHECK_FALSE(find_membership({}, 1, in({})).has_value());
  // A batch script and a shell of salloc have these, and are no step.
  CHECK_FALSE(
      find_membership({}, 1, in({{"SLURM_JOB_ID", "4711"}, {"SLURM_NNODES", "2"}, {"SLURM_NODEID", "0"}}))
          .has_value());
  NodeArgs idle;
  idle.interface = "eth0";
  CHECK_THROWS_WITH(find_membership(idle, 1, in({})), Catch::Contains("--interface has no effect"));
}

TEST_CASE("a Slurm step says which node this is and where they meet", "[nodes]") {
  const auto membership = find_membership({}, 3, in(kStep));
  REQUIRE(membership.has_value());
  CHECK(membership->nodes.nodes == 3);
  CHECK(membership->nodes.node == 1);
  CHECK(membership->nodes.hosts == Names{"gpu09", "gpu10", "login"});
  CHECK(membership->rendezvous.text() == "gpu09:24711");
  CHECK(membership->timeout_seconds == 300);
  CHECK(find_membership({}, 3, in(with(kStep, "SLURM_STEP_ID", "1")))->rendezvous.port != 24711);
  CHECK(find_membership({}, 3, in(with(kStep, "SLURM_JOB_ID", "999999999")))->rendezvous.port >= 20000);
  CHECK(find_membership({}, 3, in(with(kStep, "SLURM_JOB_ID", "999999999")))->rendezvous.port < 32000);
  NodeArgs elsewhere;
  elsewhere.rendezvous = "10.0.0.1:5000";
  elsewhere.timeout_seconds = 20;
  elsewhere.interface = "ib0";
  const auto other = find_membership(elsewhere, 3, in(kStep));
  CHECK(other->rendezvous.text() == "10.0.0.1:5000");
  CHECK(other->nodes.node == 1);
  CHECK(other->timeout_seconds == 20);
  CHECK(other->interface == "ib0");
}

TEST_CASE("a Slurm step that contradicts the job or itself is refused", "[nodes]") {
  const auto refused = [](std::int64_t nodes, const std::map<std::string, std::string>& variables,
                          const std::string& text) {
    CHECK_THROWS_AS(find_membership({}, nodes, in(variables)), base::SpecError);
    CHECK_THROWS_WITH(find_membership({}, nodes, in(variables)), Catch::Contains(text));
  };
  refused(1, kStep, "set cluster.nodes to 3");
  refused(2, kStep, "the Slurm step has 3 nodes and the job is for 2 nodes");
  refused(3, with(kStep, "SLURM_STEP_NUM_TASKS", "6"), "--ntasks-per-node=1");
  refused(3, with(kStep, "SLURM_STEP_NODELIST", "gpu[09-10]"), "names 2 hosts");
  refused(3, with(kStep, "SLURM_NODEID", "3"), "--node 3");
  refused(3, with(kStep, "SLURM_NODEID", "-1"), "SLURM_NODEID is '-1'");
  for (const auto& [name, value] : kStep) {
    if (name == "SLURM_STEP_NUM_NODES") continue;
    auto without = kStep;
    without.erase(name);
    refused(3, without, name + " is not set");
  }
}

TEST_CASE("options place a node without a scheduler and go over it", "[nodes]") {
  NodeArgs args;
  args.node = 2;
  args.rendezvous = "[::1]:29500";
  const auto membership = find_membership(args, 4, in(kStep));  // of which the step has 3
  CHECK(membership->nodes.node == 2);
  CHECK(membership->nodes.hosts.empty());
  CHECK(membership->rendezvous.host == "::1");
  args.node = 4;
  CHECK_THROWS_WITH(find_membership(args, 4, in({})), Catch::Contains("0 to 3"));
  args.node = -1;
  CHECK_THROWS_WITH(find_membership(args, 4, in({})), Catch::Contains("nothing says which this one is"));
  args.node = 0;
  args.rendezvous = "";
  CHECK_THROWS_WITH(find_membership(args, 4, in({})), Catch::Contains("nothing says where they meet"));
  args.rendezvous = "host:0";
  CHECK_THROWS_WITH(find_membership(args, 4, in({})), Catch::Contains("expected host:port"));
}
