// A job's inputs from its environment: environment variables, its own directory, the machine's devices.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/spec/machines.h"
#include "spec_test_support.h"

namespace trainerd::core {
namespace {

spec::Surroundings with_variables(const std::map<std::string, std::string>& variables) {
  return {.environment = [variables](const std::string& name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional(at->second);
  }};
}
spec::Surroundings on(const spec::Machine& machine) {
  return {.machine = [machine] { return machine; }};
}

job::JobSpec job_from(const std::vector<std::string>& overrides, const spec::Surroundings& around = {}) {
  return spec::parse_job(kJob, "job.yaml", overrides, around);
}
std::string error_of(const std::vector<std::string>& overrides, const spec::Surroundings& around = {}) {
  try {
    job_from(overrides, around);
  } catch (const base::SpecError& e) {
    return e.what();
  }
  return "";
}

class Directory {
 public:
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "trainerd-spec-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

}  // namespace

TEST_CASE("variables and the home directory are expanded in texts, in lists and in overrides", "[spec]") {
  const spec::Surroundings around =
      with_variables({{"HOME", "/home/ann"}, {"DATA", "/data"}, {"EMPTY", ""}, {"LOOP", "${DATA}"}});
  const job::JobSpec made = spec::parse_job(
      "name: ${RUN:-tiny}\noutput: ~/runs\nsteps: 20\nmodel: {layers: 2, hidden: 64, heads: 4, ffn: 176, "
      "vocab: 256, seq_len: 32}\n"
      "batch: {global: 8, micro: 2}\ndata: {train: [\"${DATA}/a.txt\", ~/b.txt, 'c$$d$e~'], valid: "
      "\"${EMPTY:-/v}/${LOOP}\"}\n",
      "job.yaml", {"cluster.preset=${CLUSTER:-local}"}, around);
  CHECK(made.name == "tiny");
  CHECK(made.output == "/home/ann/runs");
  CHECK(made.data.train == std::vector<std::string>{"/data/a.txt", "/home/ann/b.txt", "c$d$e~"});
  CHECK(made.data.valid == std::vector<std::string>{"/v/${DATA}"});
  CHECK(made.cluster.preset == "local");
  CHECK(job_from({"output=${A:-${B}"}, around).output == "${B");  // expands up to the first closing brace
}

TEST_CASE("a job without a number of nodes takes the scheduler's", "[spec]") {
  std::vector<std::string> remarks;
  spec::Surroundings around;
  around.nodes = [] { return 2; };
  around.remark = [&](const std::string& line) { remarks.push_back(line); };
  CHECK(job_from({"parallel.dp=4"}, around).cluster.nodes == 2);
  REQUIRE(remarks.size() == 1);
  CHECK_THAT(remarks[0], Catch::Contains("cluster.nodes is 2"));
  CHECK(job_from({"parallel.dp=4", "cluster.nodes=4"}, around).cluster.nodes == 4);
  CHECK(job_from({"parallel.dp=4", "cluster.nodes=1"}, around).cluster.nodes == 1);
  // With a preset, nodes follow from the ranks.
  CHECK(job_from({"parallel.dp=4", "cluster.preset=dgx-h100"}, around).cluster.nodes == 1);
  CHECK_THAT(error_of({"parallel.dp=1"}, around), Catch::Contains("cannot be divided evenly among 2 nodes"));
  around.machine = [] { return spec::Machine{.cores = 2}; };
  CHECK(job_from({"parallel.dp=auto", "device=cpu", "threads=1"}, around).parallel.dp == 4);
  around.nodes = []() -> std::optional<std::int64_t> { return std::nullopt; };
  CHECK(job_from({"parallel.dp=4"}, around).cluster.nodes == 1);
}

TEST_CASE("what is wrong on every machine is reported before others are asked for theirs", "[spec]") {
  int asked = 0;
  const auto silent = [&]() -> spec::Machine {
    ++asked;
    throw base::spec_error("no answer");
  };
  const spec::Surroundings around{.machine = silent, .machine_asks_others = true};
  CHECK_THAT(error_of({"device=auto", "model.heads=5"}, around),
             Catch::Contains("is not divisible by heads 5"));
  CHECK_THAT(error_of({"device=auto", "parallel.dp=auto", "seed=x", "threads=1"}, around),
             Catch::Contains("seed: expected an integer"));
  CHECK(asked == 0);
  CHECK(error_of({"device=auto"}, around) == "no answer");
  CHECK(asked == 1);
  // Of a GPU alone, so that it depends on the answer: here there is one, and there it is the CPU's problem.
  CHECK(error_of({"device=auto", "gemm_algorithms=timed"}, around) == "no answer");
  CHECK(error_of({"device=auto", "parallel.dp=auto", "threads=0"}, around) == "no answer");
  // A job that does not ask is judged as ever.
  CHECK(job_from({"device=cpu"}, around).device == job::DeviceChoice::cpu);
  CHECK(asked == 3);
}

TEST_CASE("a resolved job is read back without the environment it was made in", "[spec]") {
  const job::JobSpec made =
      job_from({"output=${ODD}", "data.train=['a$${x}', '${ODD}']"}, with_variables({{"ODD", "~/${x}$"}}));
  CHECK(made.output == "~/${x}$");
  const job::JobSpec again = spec::parse_job(spec::to_yaml(made), "job.yaml");
  CHECK(again == made);
  CHECK(again.data.train == std::vector<std::string>{"a${x}", "~/${x}$"});
}

TEST_CASE("an unset variable is a problem at its place, never a directory of that name", "[spec]") {
  CHECK(problems("output: ${SCRATCH}/run\n" + kJob.substr(kJob.find('\n') + 1)) ==
        Lines{"job.yaml:1:9: output: the variable SCRATCH is not set in the environment: set it, or write "
              "${SCRATCH:-default}"});
  CHECK_THAT(error_of({"data.train=[a, '${X Y}']"}),
             Catch::Contains("data.train[1]: 'X Y' is no name of a variable"));
  CHECK_THAT(error_of({"output=${X"}), Catch::Contains("output: '${' has no '}' after it"));
  CHECK_THAT(error_of({"output=~/x"}),
             Catch::Contains("output: '~' is the directory HOME, which is not set"));
  CHECK_THAT(error_of({"output=~bob/x"}, with_variables({{"HOME", "/h"}})),
             Catch::Contains("write the path out"));
  // Only texts are expanded: a number must be a number.
  CHECK_THAT(error_of({"steps=${STEPS}"}, with_variables({{"STEPS", "7"}})),
             Catch::Contains("steps: expected an integer"));
}

TEST_CASE(
    "relative data is taken from the job's directory if it exists there, and job.yaml then runs from "
    "anywhere",
    "[spec]") {
  const Directory directory;
  std::filesystem::create_directory(directory.path / "text");
  for (const char* name : {"a.txt", "text/one.txt", "text/two.txt"})
    std::ofstream(directory.path / name) << "x";
  const std::string path = (directory.path / "job.yaml").string();
  std::ofstream(path)
      << kJob.substr(0, kJob.find("data:"))
      << "data: {train: [a.txt, ./text, 'text/*.txt', missing.txt, 'no/*.txt', /absolute.txt]}\n";
  const job::JobSpec made = spec::load_job(path);
  const std::string at = directory.path.string();
  CHECK(made.data.train == std::vector<std::string>{at + "/a.txt", at + "/text", at + "/text/*.txt",
                                                    "missing.txt", "no/*.txt", "/absolute.txt"});
  CHECK(spec::parse_job(spec::to_yaml(made), "elsewhere.yaml") == made);
}

TEST_CASE("device: auto uses the machine's GPUs, otherwise the CPU", "[spec]") {
  CHECK(job_from({}, on({.cores = 4})).device == job::DeviceChoice::cpu);
  CHECK(job_from({}, on({.cores = 4, .cuda_devices = 1})).device == job::DeviceChoice::cuda);
  CHECK(job_from({"device=cpu"}, on({.cuda_devices = 8})).device == job::DeviceChoice::cpu);
  CHECK(job_from({"cluster.preset=dgx-h100"}, on({.cores = 4})).device == job::DeviceChoice::automatic);
  // Keys for GPUs only take effect.
  CHECK(job_from({"attention=fast"}, on({.cuda_devices = 1})).attention.backward ==
        kernels::Determinism::fast);
  // It is not deterministic: a repeated computation has other bits.
  for (const char* key : {"supervise.verify.every=5", "supervise.spikes.policy=[skip, retry]"})
    CHECK_THAT(error_of({"attention=fast", key}, on({.cuda_devices = 1})),
               Catch::Contains("with attention: fast a step that is computed again has other bits on sound "
                               "hardware, which would be called corruption"));
  CHECK(job_from({"attention=fast", "supervise.spikes.policy=[skip]"}, on({.cuda_devices = 1}))
            .supervise.judges_steps());
  CHECK_THAT(error_of({"attention=fast"}, on({.cores = 4})), Catch::Contains("attention: has no effect"));
}

TEST_CASE("device: auto with more ranks than GPUs says how to choose", "[spec]") {
  const std::vector<std::string> four{"parallel.dp=4"};
  CHECK_THAT(error_of(four, on({.cuda_devices = 2})),
             Catch::Contains("device: auto takes the CUDA devices of this machine, 2, and the job has 4 "
                             "ranks on it: set device: cpu"));
  CHECK(job_from({"parallel.dp=4", "cluster.nodes=2"}, on({.cuda_devices = 2})).device ==
        job::DeviceChoice::cuda);
  CHECK(job_from({"parallel.dp=4", "cluster.communication=staged"}, on({.cuda_devices = 2})).device ==
        job::DeviceChoice::cuda);
  CHECK(job_from({"parallel.dp=4", "device=cpu"}, on({.cuda_devices = 2})).device == job::DeviceChoice::cpu);
}

TEST_CASE("GPUs that device: auto cannot use are a remark, not a silent CPU", "[spec]") {
  std::vector<std::string> remarks;
  spec::Surroundings around =
      on({.cores = 4, .no_cuda = "this machine has 2 GPUs that cannot be used: no plugin"});
  around.remark = [&](const std::string& line) { remarks.push_back(line); };
  CHECK(job_from({}, around).device == job::DeviceChoice::cpu);
  REQUIRE(remarks.size() == 1);
  CHECK_THAT(
      remarks[0],
      Catch::Contains("device: auto is the CPU: this machine has 2 GPUs that cannot be used: no plugin"));
  job_from({"device=cpu"}, around);
  CHECK(remarks.size() == 1);
}

TEST_CASE("GPUs are counted by their management library and used by the CUDA part of the build", "[spec]") {
  CHECK(spec::this_machine("libnvidia-ml-of-nobody.so.1").no_cuda.empty());
  const spec::Machine machine = spec::this_machine(TRAINERD_STAND_IN_NVML);
  CHECK(machine.cores >= 1);
  if (machine.cuda_devices == 0)
    CHECK_THAT(machine.no_cuda, Catch::Contains("this machine has 2 GPUs that cannot be used: "));
}

TEST_CASE("dp: auto is the largest that the devices hold and the batch divides into", "[spec]") {
  const auto dp = [](const std::vector<std::string>& more, const spec::Machine& machine) {
    std::vector<std::string> overrides{"parallel.dp=auto"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return job_from(overrides, on(machine)).parallel.dp;
  };
  // 8 sequences in microbatches of 2: at most dp 4.
  CHECK(dp({"threads=1"}, {.cores = 4}) == 4);
  CHECK(dp({"threads=1"}, {.cores = 64}) == 4);
  CHECK(dp({"threads=2"}, {.cores = 7}) == 2);  // three would fit, but do not divide four
  CHECK(dp({"threads=8"}, {.cores = 2}) == 1);
  CHECK(dp({"threads=1", "parallel.tp=2"}, {.cores = 5}) == 2);
  CHECK(dp({"threads=1", "cluster.nodes=2"}, {.cores = 1}) == 2);
  CHECK(dp({}, {.cores = 1, .cuda_devices = 2}) == 2);  // threads do not limit GPUs
  CHECK(dp({"cluster.preset=dgx-h100", "batch.global=32"}, {}) == 8);
  CHECK(dp({"threads=1", "batch.global=24", "model.experts={count: 8, per_token: 2}", "parallel.ep=4"},
           {.cores = 7}) == 4);
  CHECK(job_from({}).parallel.dp == 1);
  CHECK_THAT(error_of({"parallel.dp=auto"}, on({.cores = 6})),
             Catch::Contains("parallel.dp: auto divides the 6 cores by `threads`, and threads is 0"));
  CHECK_THAT(error_of({"parallel.dp=auto"}), Catch::Contains("give a number"));
  CHECK_THAT(error_of({"parallel.dp=atuo"}),
             Catch::Contains("expected an integer or auto, got 'atuo' (nearest valid: auto)"));
  CHECK_THAT(error_of({"parallel.dp=0"}), Catch::Contains("parallel.dp: must be at least 1"));
}

TEST_CASE("dp: auto of a run that has a checkpoint is that checkpoint's", "[spec]") {
  spec::Surroundings around = on({.cores = 4});
  std::string asked;
  around.trained_dp = [&](const job::JobSpec& asking) -> std::optional<std::int64_t> {
    return asked = asking.output, 2;
  };
  const job::JobSpec made = job_from({"parallel.dp=auto"}, around);
  CHECK(made.parallel.dp == 2);
  CHECK(asked == "runs/tiny");
  CHECK_THAT(spec::to_yaml(made), Catch::Contains("  dp: 2\n"));
}

TEST_CASE("a job for CUDA can be laid out on a machine without CUDA on request", "[spec]") {
  const job::JobSpec cuda = job_from({"device=cuda", "parallel.dp=2"});
  const parallel::PlacedGrid placed = spec::place_job(cuda, spec::Absent::assumed);
  CHECK(placed.placement.ranks() == 2);
  CHECK(placed.topology.device.kind == kernels::DeviceKind::cuda);
}

}  // namespace trainerd::core
