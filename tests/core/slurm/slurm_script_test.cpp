// Batch scripts for Slurm, without Slurm itself: tests/system/slurm_test.py submits them.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "core/slurm/batch_script.h"
#include "core/slurm/program.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using namespace trainerd;
using namespace trainerd::core;
using trainerd::test::message_of;
using trainerd::test::read_file;
using trainerd::test::TempDir;
using trainerd::test::write_file;

namespace {

job::JobSpec slurm_job(const std::vector<std::string>& overrides) {
  return spec::parse_job(
      "name: tiny\nsteps: 20\nmodel: {layers: 2, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 32}\n"
      "batch: {global: 32, micro: 1}\ndata: {train: [a.txt]}\n",
      "job.yaml", overrides);
}

slurm::SlurmResources slurm_needs(const job::JobSpec& job, slurm::NodeShare share = slurm::NodeShare::whole) {
  return slurm::slurm_resources(job, spec::job_topology(job), share);
}

slurm::BatchScript tiny_script(const job::JobSpec& job) {
  return {.name = job.name,
          .resources = slurm_needs(job),
          .directory = "/home/ann",
          .log_directory = "/home/ann/runs/tiny/slurm",
          .executable = "/opt/trainerd/bin/trainerd"};
}

// The repository's script, from its first command on.
std::string sbatch_actions() {
  const std::string text = read_file(std::string(TRAINERD_SOURCE_DIR) + "/deploy/slurm/trainerd.sbatch"),
                    begin = "\nset -euo pipefail\n";
  REQUIRE(text.find(begin) != std::string::npos);
  return text.substr(text.find(begin) + begin.size());
}

std::vector<std::string> sbatch_lines(const std::string& script) {
  std::vector<std::string> found;
  std::istringstream lines(script);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("#SBATCH ")) found.push_back(line.substr(8));
  return found;
}

bool has_line(const std::vector<std::string>& lines, const std::string& line) {
  return std::count(lines.begin(), lines.end(), line) == 1;
}

// Runs a script with a fake srun, which prints its arguments and the job file.
std::string run_with_stand_in(const TempDir& dir, const std::string& script, const std::string& variables) {
  write_file(dir / "bin/srun", "#!/bin/sh\nprintf '<%s>\\n' \"$@\"\ncat \"$JOB_FILE\"\n");
  REQUIRE(std::system(("chmod +x " + (dir / "bin/srun")).c_str()) == 0);
  write_file(dir / "script", script);
  const auto outcome = slurm::run_program(
      {"sh", "-c", "PATH=" + (dir / "bin") + ":$PATH " + variables + " exec bash " + (dir / "script")});
  REQUIRE(outcome.has_value());
  INFO(outcome->error);
  CHECK(outcome->status == 0);
  return outcome->output;
}

}  // namespace

TEST_CASE("the script of a job is a header followed by trainerd.sbatch", "[slurm]") {
  const job::JobSpec job = slurm_job({"parallel.dp=16", "cluster.preset=dgx-h100"});
  slurm::BatchScript script = tiny_script(job);
  script.notes = {"Made by: trainerd submit job.yaml", "fits: 1 of 80 GiB\ntime: 1 s\n"};
  script.run_options = {"--interface", "ib0"};
  script.options = slurm::parse_sbatch_options({"--partition=gpu", "--comment=two words", "--contiguous"});
  CHECK(slurm::batch_script(script, job) == R"(#!/usr/bin/env bash
# Made by: trainerd submit job.yaml
# fits: 1 of 80 GiB
# time: 1 s
#SBATCH --job-name=tiny
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --chdir=/home/ann
#SBATCH --output=/home/ann/runs/tiny/slurm/%j.out
#SBATCH --partition=gpu
#SBATCH --comment='two words'
#SBATCH --contiguous
set -euo pipefail

[ -n "${TRAINERD:-}" ] || TRAINERD=/opt/trainerd/bin/trainerd
resolved=/home/ann/runs/tiny/slurm/job-$SLURM_JOB_ID.yaml
cat >"$resolved.partial" <<'END_OF_JOB'
)" + spec::to_yaml(job) + R"(END_OF_JOB
mv "$resolved.partial" "$resolved"
set -- "$resolved" --interface ib0

# From here on deploy/slurm/trainerd.sbatch.
)" + sbatch_actions());
}

TEST_CASE("the script of an array runs the job of its task", "[slurm]") {
  const job::JobSpec job = slurm_job({"threads=2", "parallel.dp=2"});
  slurm::BatchScript script = tiny_script(job);
  script.resources = slurm_needs(job, slurm::NodeShare::part);
  script.max_requeues = 3;
  CHECK(slurm::array_script(script, {"/s/0.yaml", "/s/it's 1.yaml"}, 1) == R"(#!/usr/bin/env bash
#SBATCH --job-name=tiny
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
#SBATCH --nodes=1
#SBATCH --cpus-per-task=4
#SBATCH --chdir=/home/ann
#SBATCH --output=/home/ann/runs/tiny/slurm/%A_%a.out
#SBATCH --array=0-1%1
set -euo pipefail

[ -n "${TRAINERD:-}" ] || TRAINERD=/opt/trainerd/bin/trainerd
[ -n "${TRAINERD_MAX_REQUEUES:-}" ] || TRAINERD_MAX_REQUEUES=3
jobs=(
  /s/0.yaml
  '/s/it'\''s 1.yaml'
)
set -- "${jobs[$SLURM_ARRAY_TASK_ID]}"

# From here on deploy/slurm/trainerd.sbatch.
)" + sbatch_actions());
  CHECK(has_line(sbatch_lines(slurm::array_script(script, {"/s/0.yaml"}, 0)), "--array=0-0"));
  CHECK_THROWS_AS(slurm::array_script(script, {}, 1), base::SpecError);
}

TEST_CASE("a script gives srun the job, in words that no name breaks", "[slurm]") {
  const TempDir dir;
  const job::JobSpec job = slurm_job({"output=/it's/$$HOME/`id`"});
  slurm::BatchScript script = tiny_script(job);
  script.log_directory = dir / "with space";
  script.executable = "/opt/a 'b'/trainerd";
  script.run_options = {"--interface", "$x y"};
  std::filesystem::create_directory(script.log_directory);
  const std::string file = script.log_directory + "/job-17.yaml",
                    variables = "SLURM_JOB_ID=17 SLURM_JOB_NUM_NODES=1 JOB_FILE='" + file + "'";
  CHECK(run_with_stand_in(dir, slurm::batch_script(script, job), variables) ==
        "<--ntasks-per-node=1>\n<--kill-on-bad-exit=0>\n</opt/a 'b'/trainerd>\n<run>\n<" + file +
            ">\n<--nodes>\n<1>\n<--interface>\n<$x y>\n" + spec::to_yaml(job));
  CHECK(spec::parse_job(read_file(file), "written") == job);
  // An array's task selects its job file. TRAINERD overrides the executable, and the CPUs of a partial node
  // reach the step.
  write_file(dir / "1.yaml", "its own");
  const std::string array = slurm::array_script(script, {"/none", dir / "1.yaml"}, 0);
  CHECK(run_with_stand_in(dir, array,
                          "SLURM_JOB_ID=18 SLURM_ARRAY_JOB_ID=17 SLURM_ARRAY_TASK_ID=1 SLURM_JOB_NUM_NODES=1 "
                          "SLURM_CPUS_PER_TASK=4 TRAINERD=other JOB_FILE=" +
                              (dir / "1.yaml")) ==
        "<--ntasks-per-node=1>\n<--cpus-per-task=4>\n<--kill-on-bad-exit=0>\n<other>\n<run>\n<" +
            (dir / "1.yaml") + ">\n<--nodes>\n<1>\n<--interface>\n<$x y>\nits own");
}

TEST_CASE("a job's requests per node follow from its ranks and machines", "[slurm]") {
  const job::JobSpec half = slurm_job({"parallel.dp=4", "cluster.preset=dgx-h100", "threads=3"});
  CHECK(slurm_needs(half) == slurm::SlurmResources{.nodes = 1, .gpus = 4});
  CHECK(slurm_needs(half, slurm::NodeShare::part) ==
        slurm::SlurmResources{.nodes = 1, .gpus = 4, .cpus = 12, .share = slurm::NodeShare::part});
  const job::JobSpec cpu = slurm_job({"parallel.dp=4", "cluster.nodes=2", "device=cpu"});
  CHECK(slurm_needs(cpu) == slurm::SlurmResources{.nodes = 2});
  CHECK_THROWS_WITH(slurm_needs(cpu, slurm::NodeShare::part), Catch::Contains("set threads"));
}

TEST_CASE("options of sbatch override the script's, except those that the script needs", "[slurm]") {
  const job::JobSpec job = slurm_job({"parallel.dp=8", "cluster.preset=dgx-h100"});
  slurm::BatchScript script = tiny_script(job);
  script.options = slurm::parse_sbatch_options({"--job-name=other", "--gpus-per-node=h100:8", "--mem=100G"});
  const std::vector<std::string> lines = sbatch_lines(slurm::batch_script(script, job));
  CHECK((has_line(lines, "--job-name=other") && has_line(lines, "--gpus-per-node=h100:8") &&
         has_line(lines, "--mem=100G")));
  CHECK_FALSE((has_line(lines, "--job-name=tiny") || has_line(lines, "--gpus-per-node=8") ||
               has_line(lines, "--mem=0")));
  script.options = slurm::parse_sbatch_options({"--gpus-per-node=0"});
  script.max_requeues = 0;
  script.log_directory = "/runs/50%";
  const std::vector<std::string> other = sbatch_lines(slurm::batch_script(script, job));
  CHECK((has_line(other, "--no-requeue") && !has_line(other, "--requeue") &&
         has_line(other, "--output=/runs/50%%/%j.out")));
  for (const std::string& line : other) CHECK(line.find("gpus") == std::string::npos);

  for (const char* stated : {"--nodes=3", "--array=1-2", "--wrap=true", "--signal=USR1@9", "--exclusive",
                             "--requeue", "--output=x", "--chdir=/", "--test-only"})
    CHECK_THROWS_WITH(slurm::parse_sbatch_options({stated}),
                      Catch::Contains("is stated by the script itself"));
  for (const char* bad : {"-p", "gpu", "--", "--=x", "--Time=1", "--time 1", ""})
    CHECK_THROWS_WITH(slurm::parse_sbatch_options({bad}), Catch::Contains("no option of sbatch"));
  CHECK_THROWS_AS(slurm::parse_sbatch_options({"--comment=a\nrm"}), base::SpecError);
}

TEST_CASE("a program's output, errors and status are returned, at any length", "[slurm]") {
  const auto both = slurm::run_program({"sh", "-c", "head -c 300000 /dev/zero | tee /dev/stderr; exit 3"});
  REQUIRE(both.has_value());
  CHECK((both->status == 3 && both->output.size() == 300000 && both->error.size() == 300000));
  CHECK(slurm::run_program({"sh", "-c", "kill -9 $$"})->status == 137);
  CHECK(slurm::run_program({"cat"})->output.empty());  // nothing to read
  CHECK_FALSE(slurm::run_program({"no-such-program-of-trainerd"}).has_value());
}
