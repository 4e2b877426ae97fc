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

/// Stands for a scheduler that knows the address of one node, gpu09, which DNS does not know.
std::optional<std::string> scheduler_address(const std::string& node) {
  return node == "gpu09" ? std::optional<std::string>("10.0.0.9") : std::nullopt;
}
std::optional<core::run::MembershipOptions> membership_of(const NodeArgs& args, std::int64_t nodes,
                                                          const Environment& environment,
                                                          std::int64_t spares = 0) {
  return find_membership(args, nodes, spares, environment, scheduler_address);
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

TEST_CASE("a job of one node needs no option for it", "[nodes]") {
  CHECK_FALSE(membership_of({}, 1, in({})).has_value());
  // Batch scripts and salloc shells have these variables too. They are not steps.
  CHECK_FALSE(
      membership_of({}, 1, in({{"SLURM_JOB_ID", "4711"}, {"SLURM_NNODES", "2"}, {"SLURM_NODEID", "0"}}))
          .has_value());
  NodeArgs idle;
  idle.interface = "eth0";
  CHECK_THROWS_WITH(membership_of(idle, 1, in({})), Catch::Contains("--interface has no effect"));
}

TEST_CASE("a Slurm step gives the node's number and the rendezvous address", "[nodes]") {
  const auto membership = membership_of({}, 3, in(kStep));
  REQUIRE(membership.has_value());
  CHECK(membership->nodes.nodes == 3);
  CHECK(membership->nodes.node == 1);
  CHECK(membership->nodes.hosts == Names{"gpu09", "gpu10", "login"});
  CHECK(membership->rendezvous.text() == "10.0.0.9:24711");
  // A name that DNS resolves is used as it is. A name that nothing resolves is used too: connecting to it
  // fails later.
  const auto local = membership_of({}, 3, in(with(kStep, "SLURM_STEP_NODELIST", "localhost,b,c")));
  CHECK(local->rendezvous.host == "localhost");
  const auto unknown =
      membership_of({}, 3, in(with(kStep, "SLURM_STEP_NODELIST", "no-such-host.invalid,b,c")));
  CHECK(unknown->rendezvous.host == "no-such-host.invalid");
  CHECK(membership->timeout_seconds == 300);
  CHECK(membership_of({}, 3, in(with(kStep, "SLURM_STEP_ID", "1")))->rendezvous.port != 24711);
  CHECK(membership_of({}, 3, in(with(kStep, "SLURM_JOB_ID", "999999999")))->rendezvous.port >= 20000);
  CHECK(membership_of({}, 3, in(with(kStep, "SLURM_JOB_ID", "999999999")))->rendezvous.port < 32000);
  NodeArgs elsewhere;
  elsewhere.rendezvous = "10.0.0.1:5000";
  elsewhere.timeout_seconds = 20;
  elsewhere.interface = "ib0";
  const auto other = membership_of(elsewhere, 3, in(kStep));
  CHECK(other->rendezvous.text() == "10.0.0.1:5000");
  CHECK(other->nodes.node == 1);
  CHECK(other->timeout_seconds == 20);
  CHECK(other->interface == "ib0");
}

TEST_CASE("a Slurm step gives the number of nodes, and each job of an array has a port", "[nodes]") {
  CHECK(slurm_step_nodes(in(kStep)) == 3);
  CHECK_FALSE(slurm_step_nodes(in({})).has_value());
  CHECK_FALSE(slurm_step_nodes(in({{"SLURM_JOB_ID", "4711"}, {"SLURM_NNODES", "3"}})).has_value());
  CHECK_THROWS_WITH(slurm_step_nodes(in(with(kStep, "SLURM_STEP_NUM_TASKS", "6"))),
                    Catch::Contains("--ntasks-per-node=1"));
  // Each task of an array has its own job number.
  const auto port = [](const char* job) {
    auto task = with(with(kStep, "SLURM_ARRAY_JOB_ID", "4711"), "SLURM_JOB_ID", job);
    return membership_of({}, 3, in(task))->rendezvous.port;
  };
  CHECK(port("4711") != port("4712"));
}

TEST_CASE("a Slurm step that contradicts the job or itself is refused", "[nodes]") {
  const auto refused = [](std::int64_t nodes, const std::map<std::string, std::string>& variables,
                          const std::string& text) {
    CHECK_THROWS_AS(membership_of({}, nodes, in(variables)), base::SpecError);
    CHECK_THROWS_WITH(membership_of({}, nodes, in(variables)), Catch::Contains(text));
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

TEST_CASE("with a coordinator nodes need no address to meet at", "[nodes]") {
  NodeArgs args;
  args.node = 2;
  const auto at = [&](const Environment& environment) {
    return find_membership(args, 3, 0, environment, scheduler_address, "etcd://10.0.0.8:2379")->rendezvous;
  };
  CHECK(at(in({})).host.empty());
  args.rendezvous = "10.0.0.3:5000";
  CHECK(at(in({})).text() == "10.0.0.3:5000");
  args = {};
  CHECK(at(in(kStep)).host.empty());
}

TEST_CASE("options place a node without a scheduler and override one", "[nodes]") {
  NodeArgs args;
  args.node = 2;
  args.rendezvous = "[::1]:29500";
  const auto membership = membership_of(args, 4, in(kStep));  // the Slurm step has 3 nodes
  CHECK(membership->nodes.node == 2);
  CHECK(membership->nodes.hosts.empty());
  CHECK(membership->rendezvous.host == "::1");
  args.node = 4;
  CHECK_THROWS_WITH(membership_of(args, 4, in({})), Catch::Contains("0 to 3"));
  args.node = -1;
  CHECK_THROWS_WITH(membership_of(args, 4, in({})), Catch::Contains("nothing says which this one is"));
  args.node = 0;
  args.rendezvous = "";
  CHECK_THROWS_WITH(membership_of(args, 4, in({})), Catch::Contains("nothing says where they meet"));
  args.rendezvous = "host:0";
  CHECK_THROWS_WITH(membership_of(args, 4, in({})), Catch::Contains("expected host:port"));
}

TEST_CASE("nodes after the last are spares, and an option makes an agent a spare", "[nodes]") {
  NodeArgs args;
  args.rendezvous = "10.0.0.1:29500";
  for (const std::int64_t node : {0, 1}) {
    args.node = node;
    CHECK_FALSE(membership_of(args, 2, in({}), 2)->spare);
  }
  for (const std::int64_t node : {2, 3}) {
    args.node = node;
    CHECK(membership_of(args, 2, in({}), 2)->spare);
  }
  args.node = 4;
  CHECK_THROWS_WITH(membership_of(args, 2, in({}), 2), Catch::Contains("0 to 1, and spares to 3"));
  args.node = -1;
  args.spare = true;
  CHECK(membership_of(args, 2, in({}), 1)->spare);
  CHECK_THROWS_WITH(membership_of(args, 2, in({}), 0), Catch::Contains("set cluster.failures.spares"));
  // Under Slurm the last nodes of a step are the spares.
  const auto last = membership_of({}, 2, in(with(kStep, "SLURM_NODEID", "2")), 1);
  CHECK((last->spare && last->rendezvous.host == "10.0.0.9"));
  CHECK_FALSE(membership_of({}, 2, in(kStep), 1)->spare);
  CHECK_THROWS_WITH(membership_of({}, 2, in(kStep), 0), Catch::Contains("the Slurm step has 3 nodes"));
}
