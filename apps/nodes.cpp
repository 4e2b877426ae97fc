#include "apps/nodes.h"

#include <charconv>
#include <cstdlib>
#include <utility>

#include "io/text/counted.h"
#include "kernels/base/error.h"
#include "kernels/base/socket.h"

namespace trainerd::apps {
namespace {

// A longer list is an error.
constexpr std::size_t kMaxHosts = 65536;

std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < 0)
    return std::nullopt;
  return value;
}

base::SpecError bad_list(const std::string& list) {
  return base::spec_error("'" + list + "' is no list of hosts as Slurm writes it");
}

/// The numbers in "1-3,07", with their leading zeros.
std::vector<std::string> numbers_of(std::string_view ranges, const std::string& list) {
  std::vector<std::string> numbers;
  while (true) {
    const std::size_t comma = ranges.find(',');
    const std::string_view range = ranges.substr(0, comma);
    const std::size_t dash = range.find('-');
    const std::string_view first_text = range.substr(0, dash);
    const auto first = number_in(first_text);
    const auto last = dash == std::string_view::npos ? first : number_in(range.substr(dash + 1));
    if (!first || !last || *last < *first || *last - *first >= static_cast<std::int64_t>(kMaxHosts))
      throw bad_list(list);
    for (std::int64_t n = *first; n <= *last; ++n) {
      std::string digits = std::to_string(n);
      if (digits.size() < first_text.size()) digits.insert(0, first_text.size() - digits.size(), '0');
      numbers.push_back(std::move(digits));
    }
    if (numbers.size() > kMaxHosts) throw bad_list(list);
    if (comma == std::string_view::npos) return numbers;
    ranges.remove_prefix(comma + 1);
  }
}

/// Expands one item, in which text and bracketed ranges alternate.
std::vector<std::string> expand_item(std::string_view item, const std::string& list) {
  std::vector<std::string> names{""};
  while (!item.empty()) {
    const std::size_t open = item.find('[');
    for (std::string& name : names) name += item.substr(0, open);
    if (open == std::string_view::npos) break;
    const std::size_t close = item.find(']', open);
    if (close == std::string_view::npos) throw bad_list(list);
    std::vector<std::string> longer;
    const std::vector<std::string> numbers = numbers_of(item.substr(open + 1, close - open - 1), list);
    if (names.size() * numbers.size() > kMaxHosts) throw bad_list(list);
    for (const std::string& name : names)
      for (const std::string& number : numbers) longer.push_back(name + number);
    names = std::move(longer);
    item.remove_prefix(close + 1);
  }
  if (names.front().empty()) throw bad_list(list);
  return names;
}

/// The step in which srun started this process.
struct SlurmStep {
  std::int64_t nodes = 0, node = 0;
  std::vector<std::string> hosts;
  std::uint16_t port = 0;  ///< for the rendezvous; differs between steps and jobs
};

std::optional<SlurmStep> slurm_step(const Environment& environment) {
  const auto text = [&](const char* name) {
    if (auto value = environment(name)) return *std::move(value);
    throw base::spec_error(
        std::string(name) +
        " is not set in a Slurm step; start with srun, or give --nodes, --node and --rendezvous");
  };
  const auto number = [&](const char* name) {
    const std::string value = text(name);
    if (const auto n = number_in(value)) return *n;
    throw base::spec_error(std::string(name) + " is '" + value + "', which is no number");
  };
  // A batch script or a shell of salloc has the job's variables, but is not in a step.
  if (!environment("SLURM_STEP_NUM_NODES")) return std::nullopt;
  SlurmStep step;
  step.nodes = number("SLURM_STEP_NUM_NODES");
  step.node = number("SLURM_NODEID");
  step.hosts = expand_host_list(text("SLURM_STEP_NODELIST"));
  if (const std::int64_t tasks = number("SLURM_STEP_NUM_TASKS"); tasks != step.nodes)
    throw base::spec_error("the Slurm step has " + std::to_string(tasks) + " tasks on " +
                           std::to_string(step.nodes) +
                           " nodes, and each node has one agent: start with srun --ntasks-per-node=1");
  if (std::cmp_not_equal(step.hosts.size(), step.nodes))
    throw base::spec_error("SLURM_STEP_NODELIST names " + std::to_string(step.hosts.size()) +
                           " hosts, SLURM_STEP_NUM_NODES says " + std::to_string(step.nodes));
  // Below the range of ephemeral ports.
  constexpr std::int64_t kFirstPort = 20000, kPorts = 12000, kPrime = 7919;
  step.port = static_cast<std::uint16_t>(
      kFirstPort + (number("SLURM_JOB_ID") + kPrime * (number("SLURM_STEP_ID") % kPorts)) % kPorts);
  return step;
}

/// The network need not know Slurm's node names.
std::string reachable_host(const std::string& host, const NodeAddress& address) {
  if (base::is_known_host(host)) return host;
  // Without an address, the error of the first connection names the host.
  return address(host).value_or(host);
}

base::Endpoint endpoint_of(const std::string& text) {
  if (const auto endpoint = base::parse_endpoint(text)) return *endpoint;
  throw base::spec_error("--rendezvous: expected host:port with a port of 1 to 65535, got '" + text + "'");
}

}  // namespace

std::vector<std::string> expand_host_list(const std::string& list) {
  std::vector<std::string> hosts;
  bool inside = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '[') inside = true;
    if (i < list.size() && list[i] == ']') inside = false;
    if (i < list.size() && (list[i] != ',' || inside)) continue;
    for (std::string& name : expand_item(std::string_view(list).substr(begin, i - begin), list))
      hosts.push_back(std::move(name));
    if (hosts.size() > kMaxHosts) throw bad_list(list);
    begin = i + 1;
  }
  return hosts;
}

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

std::optional<std::int64_t> slurm_step_nodes(const Environment& environment) {
  const std::optional<SlurmStep> step = slurm_step(environment);
  return step ? std::optional(step->nodes) : std::nullopt;
}

std::optional<core::run::MembershipOptions> find_membership(const NodeArgs& args, std::int64_t nodes,
                                                            std::int64_t spares,
                                                            const Environment& environment,
                                                            const NodeAddress& address,
                                                            const std::string& coordinator) {
  const std::string several = "the job is for " + io::counted(nodes, "node") + " (cluster.nodes)";
  core::run::MembershipOptions membership;
  if (args.timeout_seconds > 0) membership.timeout_seconds = args.timeout_seconds;
  membership.interface = args.interface;
  membership.nodes.nodes = nodes;
  // With --node, Slurm's variables are not read.
  const std::optional<SlurmStep> step = args.node < 0 ? slurm_step(environment) : std::nullopt;
  if (step && (step->nodes < nodes || step->nodes > nodes + spares))
    throw base::spec_error("the Slurm step has " + std::to_string(step->nodes) + " nodes and " + several +
                           ": set cluster.nodes to " + std::to_string(step->nodes) + " (--nodes " +
                           std::to_string(step->nodes) +
                           "), or start with srun --nodes=" + std::to_string(nodes + spares));
  if (args.spare && spares == 0)
    throw base::spec_error("--spare: the job has no spare nodes: set cluster.failures.spares");
  if (nodes == 1 && args.node <= 0 && args.rendezvous.empty()) {
    for (const auto& [given, name] : {std::pair{!args.interface.empty(), "--interface"},
                                      {args.timeout_seconds > 0, "--rendezvous-timeout"}})
      if (given)
        throw base::spec_error(std::string(name) + " has no effect: the job has one node; leave it out");
    return std::nullopt;
  }
  if (nodes > 1 && args.node < 0 && !step && !args.spare)
    throw base::spec_error(several +
                           " and nothing says which this one is: start with srun, or give --node 0 to " +
                           std::to_string(nodes - 1) + " and --rendezvous HOST:PORT on each");
  membership.nodes.node = step ? step->node : std::max<std::int64_t>(args.node, 0);
  membership.spare = args.spare || (spares > 0 && membership.nodes.node >= nodes);
  if (membership.nodes.node >= nodes + spares)
    throw base::spec_error("--node " + std::to_string(membership.nodes.node) + ": " + several +
                           ", which are 0 to " + std::to_string(nodes - 1) +
                           (spares > 0 ? ", and spares to " + std::to_string(nodes + spares - 1) : ""));
  if (membership.spare) membership.nodes.node = std::max(membership.nodes.node, nodes);
  if (step) membership.nodes.hosts = step->hosts;
  if (const auto token = environment("TRAINERD_TOKEN"); token && !token->empty())
    membership.token.emplace(*token, "TRAINERD_TOKEN");
  if (!args.rendezvous.empty()) membership.rendezvous = endpoint_of(args.rendezvous);
  else if (step && coordinator.empty())
    membership.rendezvous = {reachable_host(step->hosts.front(), address), step->port};
  else if (coordinator.empty())
    throw base::spec_error(several +
                           " and nothing says where they meet: give --rendezvous HOST:PORT, an address of "
                           "node 0, on each, or set supervise.coordinator");
  return membership;
}

}  // namespace trainerd::apps
