// Jobs of absurd sizes: every command answers or refuses them within bounds of time and memory.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/full.h"

namespace {

namespace fs = std::filesystem;

struct Used {
  int status = -1;  // exit status; -1 if a signal ended it
  double cpu_seconds = 0;
  double gib = 0;  // peak resident memory, GiB
  std::string output;
};

class Commands {
 public:
  Commands() {
    std::string name = (fs::temp_directory_path() / "trainerd-sizes-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
    std::ofstream(folder_ / "job.yaml")
        << "steps: 20\n"
           "model: {layers: 2, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 32}\n"
           "batch: {global: 8, micro: 2}\n"
           "data: {format: synthetic}\n"
           "output: "
        << (folder_ / "run").string() << "\n";
  }
  ~Commands() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  Used run(const std::string& command, const std::vector<std::string>& sizes) const {
    const std::string job = (folder_ / "job.yaml").string(), out = (folder_ / "out").string();
    std::vector<std::string> words{TRAINERD_BINARY};
    for (std::size_t begin = 0; begin < command.size();) {
      const std::size_t end = std::min(command.find(' ', begin), command.size());
      words.push_back(command.substr(begin, end - begin));
      begin = end + 1;
    }
    words.push_back(job);
    for (const std::string& size : sizes) words.insert(words.end(), {"--set", size});
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      const int fd = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      ::dup2(fd, STDOUT_FILENO), ::dup2(fd, STDERR_FILENO);
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    Used used;
    int status = 0;
    rusage usage{};
    REQUIRE(::wait4(pid, &status, 0, &usage) == pid);
    if (WIFEXITED(status)) used.status = WEXITSTATUS(status);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    used.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    used.gib = static_cast<double>(usage.ru_maxrss) / (1 << 20);
    std::ifstream file(out);
    used.output.assign(std::istreambuf_iterator<char>(file), {});
    return used;
  }

 private:
  fs::path folder_;
};

/// Sanitizers are several times slower and need more memory: their bounds are wider.
void check_bounds(const Used& used) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // The bound is processor time, so that other work on the machine does not count. The search uses two
  // threads.
  CHECK(used.cpu_seconds < 2 * 5);
  CHECK(used.gib < 1);
#else
  CHECK(used.cpu_seconds < 600);
#endif
}

}  // namespace

TEST_CASE("jobs of absurd sizes are answered or refused within 5 s and 1 GiB", "[cli][sizes]") {
  const Commands commands;
  const std::vector<std::vector<std::string>> all{
      {"model.layers=65536"},
      {"model.layers=1024"},
      {"model.hidden=1048576"},
      {"model.vocab=2147483647"},
      {"model.seq_len=134217728"},
      {"batch.global=16777216", "batch.micro=16777216"},
      {"batch.global=16777216", "batch.micro=1"},
      {"batch.global=131072", "batch.micro=1"},
      {"batch.global=65536", "batch.micro=1", "parallel.pp=2", "parallel.schedule=gpipe"},
      {"parallel.dp=131072", "batch.global=262144"},
      {"model.layers=1024", "parallel.pp=2", "parallel.virtual_stages=512", "parallel.schedule=interleaved",
       "batch.global=1024", "batch.micro=1"},
      {"parallel.bucket_bytes=1024", "model.hidden=8192", "model.heads=64", "model.ffn=32768"},
      {"model.layers=1024", "model.hidden=1048576", "model.heads=4096", "model.ffn=4194304",
       "model.vocab=2147483647", "model.seq_len=134217728", "batch.global=16777216", "batch.micro=16777216",
       "parallel.virtual_stages=1024"}};
  // `run` is not called here: it would train a job that is not refused.
  const std::string command =
      GENERATE("validate", "validate --json", "plan", "plan --cluster dgx-h100",
               "plan --cluster dgx-h100 --search", "simulate --costs 1,1,1,0", "simulate");
  static std::size_t turn = 0;
  for (const auto& sizes : all) {
    if (!trainerd::test::in_slice(turn++, 3)) continue;
    const Used used = commands.run(command, sizes);
    CAPTURE(command, sizes, used.output.substr(0, 400));
    CHECK((used.status == 0 || used.status == 2 || used.status == 3));
    check_bounds(used);
  }
}

TEST_CASE("a run that cannot fit is refused as soon as a plan of it", "[cli][sizes]") {
  const Commands commands;
  for (const std::vector<std::string>& sizes :
       std::vector<std::vector<std::string>>{{"model.layers=65536"},
                                             {"batch.global=16777216", "batch.micro=16777216"},
                                             {"model.hidden=1048576"},
                                             {"model.vocab=2147483647"},
                                             {"parallel.dp=131072", "batch.global=262144"}}) {
    const Used used = commands.run("run", sizes);
    CAPTURE(sizes, used.output.substr(0, 400));
    CHECK((used.status == 2 || used.status == 3));
    check_bounds(used);
  }
}

TEST_CASE("a refusal for size names the key and the valid values", "[cli][sizes]") {
  const Commands commands;
  const auto says = [&](const std::vector<std::string>& sizes, const std::string& words) {
    const Used used = commands.run("validate", sizes);
    CHECK(used.status == 2);
    CHECK_THAT(used.output, Catch::Contains(words));
  };
  says({"model.layers=65536"}, "model.layers: must be at most 1024");
  says({"batch.global=16777216", "batch.micro=1"},
       "batch.global: 16777216 microbatches on 1 pipeline chunk are more than 131072");
  says({"model.hidden=1048576"}, "model: a rank's gradients alone are ");
  says({"model.hidden=65536", "model.layers=100", "model.ffn=262144"},
       "TiB, more than the memory of any device: raise parallel.tp");
  says({"model.hidden=16384", "model.layers=100", "model.ffn=65536", "parallel.bucket_bytes=65536"},
       "parallel.bucket_bytes: a rank's gradients are more than 262144 buckets of 65536 bytes");
  says({"batch.global=16777216", "batch.micro=16777216", "model.seq_len=134217728"},
       "batch.micro: the activations of 16777216 x 134217728 tokens");
  says({"model.layers=1024", "model.hidden=1048576", "model.ffn=4194304", "parallel.dp=131072",
        "batch.global=262144"},
       "model: its parameters");
}
