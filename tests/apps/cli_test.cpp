#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

struct Outcome {
  int status = -1;     // exit status; -1 if a signal ended it
  std::string output;  // standard output and error together
};

// Runs trainerd with `arguments`. `before` goes in front of the command: a cd, a ulimit, variables.
Outcome trainerd(const std::string& arguments, const std::string& before = "") {
  const std::string command = before + std::string(TRAINERD_BINARY) + " " + arguments + " 2>&1";
  Outcome outcome;
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> block{};
  while (const std::size_t got = std::fread(block.data(), 1, block.size(), pipe))
    outcome.output.append(block.data(), got);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) outcome.status = WEXITSTATUS(status);
  return outcome;
}

// A temporary directory, removed with its contents.
class Directory {
 public:
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "trainerd-cli-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

const std::string kJob =
    "steps: 20\n"
    "model: {layers: 2, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 32}\n"
    "batch: {global: 8, micro: 2}\n"
    "data: {train: [a.txt]}\n";

TEST_CASE("validate prints a job that validates to itself", "[cli]") {
  const Directory directory;
  const Outcome first =
      trainerd("validate " + directory.write("job.yaml", kJob) + " --set optimizer.lr=1e-2");
  CHECK(first.status == 0);
  CHECK(first.output.find("lr: 0.01\n") != std::string::npos);
  const Outcome second = trainerd("validate " + directory.write("resolved.yaml", first.output));
  CHECK(second.status == 0);
  CHECK(second.output == first.output);
}

TEST_CASE("plan needs none of the job's devices or data, and its status says whether it fits", "[cli]") {
  const Directory directory;
  const std::string job = directory.write("job.yaml", kJob);
  const Outcome here = trainerd("plan " + job);
  CHECK(here.status == 0);
  CHECK(here.output.find("not predicted: local has no operator rates") != std::string::npos);
  const Outcome cluster = trainerd("plan " + job + " --cluster dgx-h100 --tokens 1e9");
  CHECK(cluster.status == 0);
  CHECK(cluster.output.find("time of a step: ") != std::string::npos);
  CHECK(cluster.output.find("1e+09 tokens: ") != std::string::npos);
  const Outcome json = trainerd("plan " + job + " --cluster dgx-a100 --json");
  CHECK(json.status == 0);
  CHECK(json.output.find("\"step_seconds\": ") != std::string::npos);
  const Outcome large = trainerd(
      "plan " + directory.write("large.yaml",
                                "steps: 1\nmodel: {preset: llama-3-70b}\nbatch: {global: 8, micro: 1}\n"
                                "data: {format: synthetic}\ncluster: {preset: dgx-h100}\n"));
  CHECK(large.status == 3);
  CHECK(large.output.find("does not fit: stage 0 needs ") != std::string::npos);
  CHECK(trainerd("plan " + job + " --cluster nowhere").status == 2);
}

TEST_CASE("validate reports the placement of ranks as comments, as JSON and as a picture", "[cli]") {
  const Directory directory;
  const std::string job = directory.write("job.yaml", kJob);
  const Outcome text = trainerd("validate " + job + " --set cluster.preset=dgx-h100");
  CHECK(text.status == 0);
  CHECK(text.output.find("# 1 rank on 1 node of 8 devices (dgx-h100, NVIDIA H100 80GB HBM3)") !=
        std::string::npos);
  const std::string picture = directory.write("grid.svg", "");
  const Outcome json = trainerd("validate " + job + " --json --svg " + picture);
  CHECK(json.status == 0);
  CHECK(json.output.rfind("{\"spec\":{", 0) == 0);
  CHECK(
      json.output.find(
          "\"ranks\":[{\"rank\":0,\"node\":0,\"device\":0,\"tp\":0,\"cp\":0,\"ep\":0,\"dp\":0,\"pp\":0}]") !=
      std::string::npos);
  CHECK(json.output.find("\"groups\":{\"tp\":[[0]]") != std::string::npos);
  std::ifstream drawn(picture);
  std::string first;
  std::getline(drawn, first);
  CHECK(first.rfind("<svg ", 0) == 0);
  CHECK(trainerd("validate " + job + " --svg no/such/grid.svg").status == 2);
  CHECK(trainerd("validate " + job + " --schedule-svg no/such/schedule.svg").status == 2);
}

TEST_CASE("a job for a CUDA device that is not here is refused in one line", "[cli]") {
  const Directory directory;
  const std::string job = directory.write("job.yaml", kJob);
  const std::string set = " --set device=cuda --set data.format=synthetic --set 'data.train=[]'";
  const Outcome outcome = trainerd("run " + job + set);
  if (outcome.output.find("CUDA") == std::string::npos) {
    WARN("this machine has a CUDA device: its absence cannot be tested");
    return;
  }
  CHECK(outcome.status == 8);
  CHECK(outcome.output.find("device: cpu") != std::string::npos);
  CHECK(std::count(outcome.output.begin(), outcome.output.end(), '\n') == 1);
  // The job itself is valid.
  const Outcome valid = trainerd("validate " + job + set);
  CHECK(valid.status == 0);
  CHECK_THAT(valid.output,
             Catch::Contains("device: cuda\n") && Catch::Contains("of which this machine has none"));
}

// A small job, like configs/tiny.yaml.
const std::string kFirstJob =
    "name: tiny\n"
    "model: {layers: 4, hidden: 64, heads: 4, kv_heads: 2, ffn: 176, vocab: 256, seq_len: 64}\n"
    "batch: {global: 16, micro: 2}\n"
    "steps: 200\n"
    "optimizer: {name: adamw, lr: 1.0e-3, schedule: {kind: cosine, warmup: 10, min_lr: 1.0e-4}}\n"
    "data: {train: [book.txt], format: text, tokenizer: bytes}\n"
    "checkpoint: {every: 50}\n";

TEST_CASE(
    "the first job is planned, searched and simulated by memory on a machine without rates, with a remedy",
    "[cli]") {
  const Directory directory;
  const std::string job = directory.write("job.yaml", kFirstJob);
  for (const std::string command : {"plan ", "plan --search ", "simulate "}) {
    const Outcome outcome = trainerd(command + job);
    CAPTURE(command, outcome.output);
    CHECK(outcome.status == 0);
    CHECK_THAT(outcome.output, Catch::Contains("local has no operator rates: run `trainerd calibrate") &&
                                   Catch::Contains("GiB"));
    CHECK(trainerd(command + job + " --json").status == 0);
    CHECK(trainerd(command + job +
                   (command == "simulate " ? " --set cluster.preset=dgx-h100" : " --cluster dgx-h100"))
              .status == 0);
  }
  const std::string svg = directory.write("a.svg", ""), trace = directory.write("a.json", "");
  CHECK(trainerd("simulate " + job + " --svg " + svg + " --trace " + trace).status == 0);
  CHECK(std::filesystem::file_size(svg) > 100);
  const Outcome noisy = trainerd("simulate " + job + " --jitter 0.1");
  CHECK(noisy.status == 2);
  CHECK_THAT(noisy.output, Catch::Contains("trainerd calibrate"));
  const Outcome failures = trainerd("simulate " + job + " --failures");
  CHECK(failures.status == 2);
  CHECK_THAT(failures.output,
             Catch::Contains("--step-seconds: is required") && Catch::Contains("--calibrate"));
}

TEST_CASE("plan measures this machine when asked, and then predicts time", "[cli]") {
  const Directory directory;
  const std::string job = directory.write("job.yaml", kFirstJob + "threads: 1\n");
  const Outcome outcome = trainerd("plan " + job + " --calibrate=0.01");
  CAPTURE(outcome.output);
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.output,
             Catch::Contains("measuring this machine") && Catch::Contains("time of a step: "));
  const Outcome other = trainerd("plan " + job + " --calibrate --cluster dgx-h100");
  CHECK(other.status == 2);
  CHECK_THAT(other.output, Catch::Contains("--calibrate: measures this machine"));
}

TEST_CASE("an unknown subcommand is named, with the nearest", "[cli]") {
  const auto says = [](const std::string& arguments, const std::string& words) {
    const Outcome outcome = trainerd(arguments);
    CHECK(outcome.status == 2);
    CHECK_THAT(outcome.output, Catch::Contains(words));
    CHECK(std::count(outcome.output.begin(), outcome.output.end(), '\n') == 1);
  };
  says("rnu job.yaml", "trainerd has no subcommand 'rnu' (nearest valid: run)");
  says("train job.yaml", "trainerd has no subcommand 'train': it has ");
  says("--bogus", "trainerd has no option '--bogus': it has ");
  says("--vresion", "trainerd has no option '--vresion' (nearest valid: --version)");
  says("checkpoint --json", "trainerd checkpoint has no option '--json': it has ");
  says("checkpoint lst dir", "trainerd checkpoint has no subcommand 'lst' (nearest valid: list)");
  CHECK(trainerd("train").output.find("worker") == std::string::npos);  // the worker subcommand is internal
}

TEST_CASE("a write to a full device is reported as a full disk, not as a missing file", "[cli]") {
  const Directory directory;
  const Outcome outcome = trainerd("validate " + directory.write("job.yaml", kJob) + " --svg /dev/full");
  CHECK(outcome.status == 2);
  CHECK_THAT(outcome.output, Catch::Contains("--svg: cannot write /dev/full: No space left on device"));
}

TEST_CASE("a limit of file descriptors that is too low is reported with its name, its value and the need",
          "[cli]") {
  const Directory directory;
  const std::string job = directory.write(
      "job.yaml", kJob + "threads: 1\nparallel: {dp: 2}\nmetrics: {listen: \"127.0.0.1:0\"}\n");
  const std::string text = directory.write("a.txt", std::string(5000, 'x'));
  const Outcome outcome = trainerd(
      "run " + job + " --set output=" + text + ".run --set 'data.train=[" + text + "]'", "ulimit -n 40; ");
  CHECK(outcome.status == 3);
  CHECK_THAT(outcome.output,
             Catch::Contains(
                 "the limit on open files is 40 (ulimit -n) and 2 ranks on this node need 100: raise it"));
}

TEST_CASE("texts of a job expand environment variables, and its data paths start at the job's directory",
          "[cli]") {
  const Directory directory;
  directory.write("book.txt", "text");
  const std::string job = directory.write("job.yaml", kFirstJob + "output: ${RUNS:-~/runs}/${NAME}\n");
  const Outcome outcome = trainerd("validate " + job, "cd /; HOME=/home/ann NAME=first ");
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.output, Catch::Contains("output: /home/ann/runs/first\n"));
  CHECK_THAT(outcome.output, Catch::Contains(job.substr(0, job.rfind('/')) + "/book.txt"));
  CHECK(trainerd("validate " + job, "env -u NAME ").status == 2);
}

TEST_CASE("simulate replays the pipeline, draws it and writes a trace", "[cli]") {
  const Directory directory;
  const std::string job = directory.write("job.yaml", kJob + "parallel: {pp: 2}\n");
  const std::string svg = directory.write("pipeline.svg", ""), trace = directory.write("trace.json", "");
  const Outcome text = trainerd("simulate " + job + " --costs 1,1,1,0 --svg " + svg + " --trace " + trace);
  // 1F1B of two ranks and four microbatches at unit costs: (p - 1) / (m + p - 1) of 3 (m + p - 1) is bubble.
  CHECK(text.output == "1f1b, 2 stages of 1 chunk, 4 microbatches: 15.000 ms, bubble 20.0 %\n");
  CHECK(text.status == 0);
  for (const auto& [path, begin] :
       {std::pair(svg, "<svg "), std::pair(trace, "{\"displayTimeUnit\":\"ms\"")}) {
    std::ifstream file(path);
    std::string first;
    std::getline(file, first);
    CHECK(first.rfind(begin, 0) == 0);
  }
  CHECK(trainerd("simulate " + job + " --costs 1,1,1,0 --json")
            .output.find("\"stages\":2,\"virtual_stages\":1,\"microbatches\":4,") != std::string::npos);
  CHECK(trainerd("simulate " + job + " --costs 1,1,1,0 --trace no/such/trace.json").status == 2);
  const Outcome unrated = trainerd("simulate " + job);
  CHECK(unrated.status == 0);
  CHECK(unrated.output.find("trainerd calibrate") != std::string::npos);
  CHECK(trainerd("simulate " + job + " --costs 1,1,1").status == 2);
  CHECK(trainerd("simulate " + job + " --costs 0,1,1,0").status == 2);
  CHECK(trainerd("simulate " + job + " --weeks 3").status == 2);
  CHECK(trainerd("simulate " + job + " --set cluster.failures.spares=1").status == 2);
}

TEST_CASE("simulate replays the plan, with jitter and stragglers when asked", "[cli]") {
  const Directory directory;
  const std::string job =
      directory.write("job.yaml", kJob + "parallel: {pp: 2}\ncluster: {preset: dgx-h100}\n");
  const std::string svg = directory.write("pipeline.svg", ""), trace = directory.write("trace.json", "");
  const Outcome planned = trainerd("simulate " + job + " --svg " + svg + " --trace " + trace);
  CHECK(planned.status == 0);
  CHECK(planned.output.find("per step as planned") != std::string::npos);
  std::ifstream file(trace);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  for (const char* name : {"\"forward\"", "\"bubble\"", "\"message\"", "pipeline rank 1"})
    CHECK(text.find(name) != std::string::npos);
  const Outcome json = trainerd("simulate " + job + " --json");
  for (const char* key :
       {"\"fits\":", "\"peak_bytes\":", "\"step_seconds\":", "\"tokens_per_second_per_device\":",
        "\"tflops_per_device\":", "\"mfu\":", "\"bubble\":", "\"time\":", "\"communication\":",
        "\"flops_convention\":", "\"pipeline_seconds\":"})
    CHECK(json.output.find(key) != std::string::npos);
  const std::string noisy = "simulate " + job + " --jitter 0.2 --straggler 1=1.5 --steps 4 --seed 7";
  const Outcome once = trainerd(noisy);
  CHECK(once.status == 0);
  CHECK(once.output.find("rank 1 1.5 times as slow") != std::string::npos);
  CHECK(trainerd(noisy).output == once.output);
  CHECK(trainerd("simulate " + job + " --straggler 2=1.5").status == 2);
  CHECK(trainerd("simulate " + job + " --straggler fast").status == 2);
  CHECK(trainerd("simulate " + job + " --jitter -1").status == 2);
  // 131,072 ranks: refused after the replay of one step.
  const std::string large =
      "simulate " +
      directory.write("large.yaml",
                      "model: {preset: llama-3-405b}\nsteps: 1\ndata: {format: synthetic}\n"
                      "cluster: {preset: dgx-h100}\nparallel: {tp: 8, pp: 16, dp: 1024}\n"
                      "batch: {global: 16384, micro: 1}\n") +
      " --jitter 0.1";
  const Outcome many = trainerd(large);
  CHECK(many.status == 2);
  CHECK_THAT(many.output,
             Catch::Contains("--jitter: a sampled step is ") && Catch::Contains(": give --steps "));
  CHECK_THAT(trainerd(large + " --set batch.global=262144").output,
             Catch::Contains("simulate the job with a smaller parallel.dp"));
}

TEST_CASE("plan --search writes a job that validate takes", "[cli]") {
  const Directory directory;
  const std::string job =
      directory.write("job.yaml", kJob + "cluster: {preset: dgx-h100}\nparallel: {dp: 4}\n");
  const std::string chosen = directory.write("chosen.yaml", "");
  const Outcome text = trainerd("plan " + job + " --search --out " + chosen);
  CHECK(text.status == 0);
  CHECK(text.output.find("chosen, over the job's own") != std::string::npos);
  CHECK(trainerd("validate " + chosen).status == 0);
  CHECK(trainerd("plan " + chosen).status == 0);
  CHECK(trainerd("plan " + job + " --search --json").output.find("\"best\": [") != std::string::npos);
  CHECK(trainerd("plan " + job + " --out " + chosen).status != 0);
  const Outcome unrated = trainerd("plan " + job + " --search --cluster local");
  CHECK(unrated.status == 0);
  CHECK(unrated.output.find("trainerd calibrate") != std::string::npos);
}

TEST_CASE("numbers that are none of an option are refused by its name", "[cli]") {
  const Directory directory;
  const std::string job =
      directory.write("job.yaml", kJob) + " --set data.format=synthetic --set 'data.train=[]'";
  const auto refused = [&](const std::string& options, const std::string& text) {
    CAPTURE(options);
    const Outcome outcome = trainerd("simulate " + job + " --set cluster.preset=dgx-h100 " + options);
    CHECK(outcome.status == 2);
    CHECK_THAT(outcome.output, Catch::Contains(text));
  };
  refused("--failures --step-seconds nan", "--step-seconds: expected a number above 0, got 'nan'");
  refused("--failures --checkpoint-bytes -1", "--checkpoint-bytes: expected a number from 0 on, got '-1'");
  refused("--failures --save-seconds -1", "--save-seconds: expected a number from 0 on, got '-1'");
  refused("--failures --step-seconds 1e7", "--weeks: a save interval takes 16.53 weeks, and 8 are simulated");
  for (const std::string seed : {"-1", "18446744073709551616", "x"})
    refused("--seed " + seed, "--seed: expected a whole number from 0 to 2^64 - 1, got '" + seed + "'");
  const Outcome unwritable = trainerd("calibrate --seconds 1 --out /nowhere/c.yaml");
  CHECK(unwritable.status == 2);
  CHECK_THAT(unwritable.output,
             Catch::Contains("--out: cannot write /nowhere/c.yaml") && !Catch::Contains("measuring"));
}

TEST_CASE("simulate --failures prints the goodput, or names the missing inputs", "[cli]") {
  const Directory directory;
  const std::string job = directory.write(
      "job.yaml", kJob + "cluster: {preset: dgx-h100}\ncheckpoint: {every: 0, async: false}\n");
  const std::string with =
      "simulate " + job + " --failures --step-seconds 5 --checkpoint-bytes 6e12 --weeks 1 --runs 5";
  const Outcome text = trainerd(with);
  CHECK(text.status == 0);
  CHECK(text.output.find("\ngoodput 99.") != std::string::npos);
  CHECK(trainerd(with).output == text.output);
  CHECK(trainerd(with + " --json").output.find("\"goodput\":0.99") != std::string::npos);
  CHECK(trainerd("simulate " + job + " --failures --weeks 1 --runs 5").status == 0);  // figures of its plan
  const Outcome missing = trainerd("simulate " + directory.write("local.yaml", kJob) +
                                   " --failures --set cluster.failures.host_per_1000_node_days=4");
  CHECK(missing.status == 2);
  CHECK(missing.output.find("--step-seconds: is required") != std::string::npos);
  CHECK(trainerd(with + " --set cluster.failures.sparse=1").status == 2);
  CHECK(trainerd(with + " --runs 1").status == 2);
  CHECK(trainerd(with + " --svg a.svg").status == 2);
}

TEST_CASE("a job for machines that are not here is validated, not run", "[cli]") {
  const Directory directory;
  const std::string job = directory.write("job.yaml", kJob);
  const Outcome outcome = trainerd("run " + job + " --set cluster.preset=dgx-h200");
  CHECK(outcome.status == 3);
  CHECK(outcome.output.find("dgx-h200 (8 x NVIDIA H200)") != std::string::npos);
}

TEST_CASE("--set takes one value at any position, also a list", "[cli]") {
  const Directory directory;
  const std::string job = directory.write("job.yaml", kJob);
  const Outcome outcome = trainerd("validate --set steps=7 --set 'data.train=[x, z]' " + job);
  CHECK(outcome.status == 0);
  CHECK(outcome.output.find("steps: 7\n") != std::string::npos);
  CHECK(outcome.output.find("train: [x, z]\n") != std::string::npos);
}

TEST_CASE("an error in a job is reported with file, line and column, and exit status 2", "[cli]") {
  const Directory directory;
  const std::string job = directory.write("job.yaml", kJob + "sed: 1\n");
  const Outcome outcome = trainerd("validate " + job + " --set stepz=1");
  CHECK(outcome.status == 2);
  CHECK(outcome.output == "trainerd: " + job + ":5:1: sed: unknown key (nearest valid: seed)\n" +
                              "--set stepz=1: stepz: unknown key (nearest valid: steps)\n");
  CHECK(trainerd("run " + job).status == 2);
  CHECK(trainerd("validate no-such.yaml").status == 2);
}

TEST_CASE("errors in a file that a job extends are reported at their place there", "[cli]") {
  const Directory directory;
  const std::string base = directory.write("base.yaml", kJob);
  const std::string job = directory.write("job.yaml", "extends: base.yaml\nmodel: {layers: 3}\n");
  const Outcome outcome = trainerd("validate " + job + " --set steps=7", "cd /; ");
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.output, Catch::Contains("\n  layers: 3\n") && Catch::Contains("steps: 7\n") &&
                                 !Catch::Contains("extends"));
  directory.write("base.yaml", kJob + "sed: 1\n");
  const Outcome wrong = trainerd("validate " + job);
  CHECK(wrong.status == 2);
  CHECK(wrong.output == "trainerd: " + base + ":5:1: sed: unknown key (nearest valid: seed)\n");
}

TEST_CASE("a wrong command line has exit status 2 and help has 0", "[cli]") {
  for (const char* arguments :
       {"", "fly", "run", "validate", "validate a b", "simulate", "data", "data inspect", "run --sett a=b x",
        "worker", "data inspect x --format csv", "schema job.yaml"}) {
    INFO(arguments);
    CHECK(trainerd(arguments).status == 2);
  }
  const Outcome help = trainerd("--help");
  CHECK(help.status == 0);
  CHECK(help.output.find("validate") != std::string::npos);
  CHECK(help.output.find("worker") == std::string::npos);
  const Outcome version = trainerd("--version");
  CHECK(version.status == 0);
  CHECK(version.output.rfind("trainerd ", 0) == 0);
}

TEST_CASE("data inspect counts a text's tokens and refuses missing files", "[cli]") {
  const Directory directory;
  const Outcome outcome = trainerd("data inspect " + directory.write("a.txt", std::string(12345, 'x')));
  CHECK(outcome.status == 0);
  CHECK(outcome.output.find("12345") != std::string::npos);
  const Outcome absent = trainerd("data inspect no-such-file.txt");
  CHECK(absent.status == 4);
  CHECK(absent.output.find("no-such-file.txt") != std::string::npos);
}

TEST_CASE("data inspect refuses token files by type, vocabulary and kind with status 4", "[cli]") {
  const Directory directory;
  const std::string ids = directory.write("ids.bin", std::string("\1\0\2\0\x05\1\3\0", 8));  // 1, 2, 261, 3
  const Outcome untyped = trainerd("data inspect " + ids);
  CHECK(untyped.status == 4);
  CHECK(untyped.output.find("--dtype") != std::string::npos);
  const Outcome typed = trainerd("data inspect " + ids + " --dtype uint16 --all --vocab 262");
  CHECK(typed.status == 0);
  CHECK(typed.output.find("261 (vocab of at least 262)") != std::string::npos);
  const Outcome outside = trainerd("data inspect " + ids + " --dtype uint16 --all --vocab 261");
  CHECK(outside.status == 4);
  CHECK(outside.output.find("token 261 at position 2") != std::string::npos);
  CHECK(outside.output.find("261 (vocab of at least 262)") !=
        std::string::npos);  // the report goes on after the error
  const Outcome lines = trainerd("data inspect " + directory.write("a.jsonl", "{}\n"));
  CHECK(lines.status == 4);
  CHECK(lines.output.find("JSON lines") != std::string::npos);
}

TEST_CASE("output that cannot be written is not success", "[cli]") {
  const Directory directory;
  const std::string job = directory.write("job.yaml", kJob);
  for (const std::string& command :
       {"validate " + job, std::string("schema"), std::string("--help"), std::string("run --help")}) {
    const Outcome outcome = trainerd(command + " 2>&1 > /dev/full; }", "{ ");
    CHECK(outcome.status == 2);
    CHECK_THAT(outcome.output, Catch::Contains("cannot write to standard output: No space left on device") &&
                                   !Catch::Contains("internal error"));
  }
}

}  // namespace

TEST_CASE("the pictures of a grid and a schedule in parallel/README.md are the program's", "[cli]") {
  const Directory directory;
  const std::string pictures = std::string(TRAINERD_SOURCE_DIR) + "/tests/golden/pictures/";
  const std::string grid = directory.write("grid.svg", ""), schedule = directory.write("schedule.svg", "");
  REQUIRE(
      trainerd("validate " + pictures + "job.yaml --svg " + grid + " --schedule-svg " + schedule).status ==
      0);
  const auto text = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  CHECK(text(grid).size() > 1000);
  CHECK(text(grid) == text(pictures + "grid.svg"));
  CHECK(text(schedule).size() > 1000);
  CHECK(text(schedule) == text(pictures + "schedule.svg"));
}
