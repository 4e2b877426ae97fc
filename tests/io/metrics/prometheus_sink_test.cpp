#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include "io/metrics/sinks.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"
#include "tests/io/temp_dir.h"

using trainerd::base::SpecError;
using trainerd::base::UniqueFd;
namespace base = trainerd::base;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

UniqueFd connect_to(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1))));
  REQUIRE(::inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) == 1);
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0);
  return fd;
}

std::string http_reply(const std::string& address, const std::string& path) {
  const UniqueFd fd = connect_to(address);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  REQUIRE(trainerd::base::write_all(fd.get(), std::as_bytes(std::span(request))) == 0);
  std::string reply;
  std::array<char, 4096> part{};
  for (ssize_t n = 0; (n = ::read(fd.get(), part.data(), part.size())) > 0;)
    reply.append(part.data(), static_cast<std::size_t>(n));
  return reply;
}

std::string http_get(const std::string& address, const std::string& path) {
  const std::string reply = http_reply(address, path);
  REQUIRE(reply.starts_with("HTTP/1.1 200"));
  return reply.substr(reply.find("\r\n\r\n") + 4);
}

/// Maps "name{labels}" to values.
std::map<std::string, double> scrape(const PrometheusSink& sink, const std::string& path = "/metrics") {
  std::istringstream text(http_get(sink.address(), path));
  std::map<std::string, double> values;
  for (std::string line; std::getline(text, line);)
    if (!line.empty() && line[0] != '#')
      values[line.substr(0, line.rfind(' '))] = std::stod(line.substr(line.rfind(' ') + 1));
  return values;
}

RunInfo served_run() {
  return {.name = "t",
          .output = "o",
          .device = "cpu",
          .threads = 2,
          .parameters = 10,
          .steps = 9,
          .start_step = 4,
          .start_tokens = 4096,
          .tokens_per_step = 1024,
          .flops_per_token = 60,
          .peak_flops = 1e9,
          .precision = "bf16",
          .memory_planned_bytes = 30,
          .memory_regions = {{"weights", 10}, {"frames", 20}},
          .version = "0.1.0"};
}

StepRecord served_step(std::int64_t n) {
  return {.step = n,
          .tokens = n * 1024,
          .loss = 2.5,
          .grad_norm = 0.75,
          .learning_rate = 0.001,
          .step_seconds = 0.3,
          .tokens_per_second = 3413.5,
          .mfu = 0.625,
          .time = {{base::LedgerPart::compute, 0.16},
                   {base::LedgerPart::exposed_tp, 0.03},
                   {base::LedgerPart::exposed_world, 0.01},
                   {base::LedgerPart::data_wait, 0.02},
                   {base::LedgerPart::optimizer, 0.08}},
          .widened_gemms = n * 7,
          .reference_gemms = n * 2,
          .missed_gemm_choices = n * 3};
}

}  // namespace

TEST_CASE("a scrape over a socket shows what the run reported") {
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  CHECK(sink.address().starts_with("127.0.0.1:"));
  CHECK(sink.address() != "127.0.0.1:0");
  sink.on_start(served_run());
  auto m = scrape(sink);
  CHECK(m.at("trainerd_step") == 4);
  CHECK(m.at("trainerd_tokens_total") == 0);
  CHECK(m.at("trainerd_run_tokens") == 4096);
  CHECK(m.at(R"(trainerd_time_seconds_total{part="bubble"})") == 0);
  for (const char* axis : {"tp", "dp", "pp", "world"})
    CHECK(m.at(R"(trainerd_time_seconds_total{axis=")" + std::string(axis) +
               R"(",part="exposed_communication"})") == 0);
  CHECK(m.count("trainerd_loss") == 0);  // not known yet
  CHECK(m.at(R"(trainerd_memory_planned_bytes{region="frames"})") == 20);
  CHECK(m.at(R"(trainerd_build_info{device="cpu",precision="bf16",version="0.1.0"})") == 1);
  sink.on_step(served_step(5));
  CHECK(scrape(sink).count("trainerd_z_loss") == 0);
  CHECK(scrape(sink).count("trainerd_expert_balance_loss") == 0);
  CHECK(scrape(sink).count("trainerd_pair_accuracy_ratio") == 0);
  StepRecord parts = served_step(6);
  parts.z_loss = 0.125;
  parts.expert_balance = 0.0625;
  parts.expert_load = {1.5, 2};
  parts.rewards = PairRewards{.margin = 1.5, .accuracy = 0.75, .chosen = 0.5, .rejected = -1};
  parts.grad_norms = {{"attention", 0.5}, {"mlp", 0.25}};
  sink.on_step(parts);
  sink.on_evaluation({.step = 6, .loss = 2.75, .tokens = 100, .seconds = 1});
  sink.on_checkpoint(
      {.step = 6, .bytes = 123456, .snapshot_seconds = 0.02, .write_seconds = 0.7, .path = "p"});
  m = scrape(sink);
  CHECK(m.at("trainerd_step") == 6);
  CHECK(m.at("trainerd_loss") == 2.5);
  CHECK(m.at("trainerd_validation_loss") == 2.75);
  CHECK(m.at("trainerd_validation_perplexity") == Approx(15.6426));  // e^2.75
  CHECK(m.count("trainerd_validation_bpb") == 0);
  CHECK(m.at("trainerd_grad_norm") == 0.75);
  CHECK(m.at("trainerd_z_loss") == 0.125);
  CHECK(m.at("trainerd_expert_balance_loss") == 0.0625);
  CHECK(m.at(R"(trainerd_expert_load_ratio{layer="1"})") == 2);
  CHECK(m.at(R"(trainerd_pair_reward{answer="chosen"})") == 0.5);
  CHECK(m.at(R"(trainerd_pair_reward{answer="rejected"})") == -1);
  CHECK(m.at("trainerd_pair_reward_margin") == 1.5);
  CHECK(m.at("trainerd_pair_accuracy_ratio") == 0.75);
  CHECK(m.at(R"(trainerd_group_grad_norm{group="attention"})") == 0.5);
  CHECK(m.at(R"(trainerd_group_grad_norm{group="mlp"})") == 0.25);
  CHECK(m.at("trainerd_learning_rate") == 0.001);
  CHECK(m.at("trainerd_tokens_per_second") == 3413.5);
  CHECK(m.at("trainerd_mfu_ratio") == 0.625);
  CHECK(m.at("trainerd_tokens_total") == 2048);  // only of this process
  CHECK(m.at("trainerd_run_tokens") == 6144);
  CHECK(m.at("trainerd_widened_gemms_total") == 42);
  CHECK(m.at("trainerd_reference_gemms_total") == 12);
  CHECK(m.at("trainerd_missed_gemm_choices_total") == 18);
  CHECK(m.at("trainerd_step_seconds_count") == 2);
  CHECK(m.at("trainerd_step_seconds_sum") == Approx(0.6));
  CHECK(m.at(R"(trainerd_step_seconds_bucket{le="0.25"})") == 0);
  CHECK(m.at(R"(trainerd_step_seconds_bucket{le="0.5"})") == 2);
  CHECK(m.at(R"(trainerd_time_seconds_total{part="compute"})") == Approx(0.32));
  CHECK(m.at(R"(trainerd_time_seconds_total{axis="tp",part="exposed_communication"})") == Approx(0.06));
  CHECK(m.at(R"(trainerd_time_seconds_total{axis="world",part="exposed_communication"})") == Approx(0.02));
  double seconds = 0;
  for (const auto& [name, value] : m)
    if (name.starts_with("trainerd_time_seconds_total")) seconds += value;
  CHECK(seconds == Approx(m.at("trainerd_step_seconds_sum")));
  CHECK(m.at(R"(trainerd_time_seconds_total{part="optimizer"})") == Approx(0.16));
  CHECK(m.at("trainerd_checkpoints_total") == 1);
  CHECK(m.at("trainerd_checkpoint_bytes") == 123456);
  CHECK(m.at(R"(trainerd_checkpoint_seconds_sum{part="write"})") == Approx(0.7));
  CHECK(m.at(R"(trainerd_checkpoint_seconds_count{part="snapshot"})") == 1);
}

TEST_CASE("a scrape shows the loss scale and overflows, and the norm of the step before an overflow") {
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  sink.on_start(served_run());
  sink.on_step(served_step(5));
  auto m = scrape(sink);
  CHECK(m.count("trainerd_loss_scale") == 0);
  CHECK(m.count("trainerd_overflow_steps_total") == 0);
  StepRecord scaled = served_step(6);
  scaled.loss_scale = 2048, scaled.overflow = scaled.skipped = true, scaled.grad_norm = HUGE_VAL;
  sink.on_step(scaled);
  m = scrape(sink);
  CHECK(m.at("trainerd_loss_scale") == 2048);
  CHECK(m.at("trainerd_overflow_steps_total") == 1);
  CHECK(m.at("trainerd_grad_norm") == 0.75);
}

TEST_CASE("failed tries of checkpoints are counted, and a checkpoint's age is that of the scrape") {
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  CHECK_FALSE(scrape(sink).contains("trainerd_checkpoint_age_seconds"));
  sink.on_start(served_run());
  auto m = scrape(sink);
  CHECK(m.at(R"(trainerd_checkpoint_failures_total{part="write"})") == 0);
  CHECK(m.at(R"(trainerd_checkpoint_failures_total{part="clean_up"})") == 0);
  const double young = m.at("trainerd_checkpoint_age_seconds");
  sink.on_checkpoint_failure({.step = 5});
  sink.on_checkpoint_failure({.step = 5});
  sink.on_checkpoint_failure({.step = 5, .what = CheckpointFailureRecord::What::clean_up});
  m = scrape(sink);
  CHECK(m.at(R"(trainerd_checkpoint_failures_total{part="write"})") == 2);
  CHECK(m.at(R"(trainerd_checkpoint_failures_total{part="clean_up"})") == 1);
  // The age grows with the clock, and a checkpoint resets it.
  double old = m.at("trainerd_checkpoint_age_seconds");
  CHECK(old > young);
  for (const double start = trainerd::base::monotonic_seconds(); old < 0.05;) {
    REQUIRE(trainerd::base::monotonic_seconds() - start < 60);
    old = scrape(sink).at("trainerd_checkpoint_age_seconds");
  }
  sink.on_checkpoint({.step = 6, .bytes = 1, .snapshot_seconds = 0.02, .write_seconds = 0.7, .path = "p"});
  CHECK(scrape(sink).at("trainerd_checkpoint_age_seconds") < old);
}

TEST_CASE("the free space of the output directory's file system is that of the scrape") {
  const TempDir dir;
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  RunInfo there = served_run();
  sink.on_start(there);  // its output is not a directory
  CHECK_FALSE(scrape(sink).contains("trainerd_output_disk_free_bytes"));
  there.output = dir.path();
  sink.on_start(there);
  const double free = scrape(sink).at("trainerd_output_disk_free_bytes");
  const auto expected = static_cast<double>(std::filesystem::space(dir.path()).available);
  CHECK(free > 0);
  CHECK(std::abs(free - expected) < 0.05 * expected + 1e9);  // other processes write to the disk meanwhile
}

TEST_CASE("metrics are served under another path too, and nothing below any other") {
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  sink.also_at("/a-1/metrics");
  sink.on_start(served_run());
  sink.on_step(served_step(5));
  CHECK(scrape(sink, "/a-1/metrics").at("trainerd_step") == 5);
  CHECK(scrape(sink, "/a-1/metrics").contains("trainerd_checkpoint_age_seconds"));
  CHECK(scrape(sink).at("trainerd_step") == 5);
  CHECK(http_reply(sink.address(), "/b-1/metrics").starts_with("HTTP/1.1 404"));
}

TEST_CASE("an unknown MFU is an absent metric") {
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  StepRecord record = served_step(1);
  sink.on_step(record);
  CHECK(scrape(sink).count("trainerd_mfu_ratio") == 1);
  record.mfu.reset();
  sink.on_step(record);
  CHECK(scrape(sink).count("trainerd_mfu_ratio") == 0);
}

TEST_CASE("a rank's GPU has metrics, and figures that it no longer reports go away") {
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  DeviceRecord record{.rank = 3, .reading = {}};
  record.reading = {.pci_bus_id = "0000:65:00.0",
                    .name = "NVIDIA H200",
                    .uuid = "GPU-65",
                    .memory_used_bytes = 5e9,
                    .memory_total_bytes = 15e10,
                    .power_watts = 612.5,
                    .sm_clock_hertz = 1.98e9,
                    .temperature_celsius = 57,
                    .energy_joules = 9e6,
                    .ecc_errors = 2,
                    .throttle_reasons = 0x4c,
                    .nvlink_errors = {{0, 3}, {5, 4}}};
  sink.on_device(record);
  const std::string labels = R"({UUID="GPU-65",modelName="NVIDIA H200",pci_bus_id="0000:65:00.0",rank="3"})";
  auto values = scrape(sink);
  CHECK(values.at("trainerd_device_memory_used_bytes" + labels) == 5e9);
  CHECK(values.at("trainerd_device_memory_total_bytes" + labels) == 15e10);
  CHECK(values.at("trainerd_device_power_watts" + labels) == 612.5);
  CHECK(values.at("trainerd_device_sm_clock_hertz" + labels) == 1.98e9);
  CHECK(values.at("trainerd_device_temperature_celsius" + labels) == 57);
  CHECK(values.at("trainerd_device_ecc_errors" + labels) == 2);
  CHECK(values.at("trainerd_device_energy_joules_total" + labels) == 9e6);
  CHECK(values.at("trainerd_device_nvlink_errors" + labels) == 7);
  // Power cap, and heat, which the hardware's slowdown is due to.
  const auto throttled = [&](const std::string& reason) {
    return values.at("trainerd_device_throttled" + labels.substr(0, labels.size() - 1) + ",reason=\"" +
                     reason + "\"}");
  };
  CHECK((throttled("thermal") == 1 && throttled("power") == 0 && throttled("power_cap") == 1));
  record.reading.power_watts.reset();
  record.reading.energy_joules = 9.5e6;
  record.reading.temperature_celsius = 58;
  sink.on_device(record);
  values = scrape(sink);
  CHECK_FALSE(values.contains("trainerd_device_power_watts" + labels));
  CHECK(values.at("trainerd_device_energy_joules_total" + labels) == 9.5e6);
  CHECK(values.at("trainerd_device_temperature_celsius" + labels) == 58);
}

TEST_CASE("what is found of GPUs is counted by kind, from 0") {
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  sink.on_start(served_run());
  CHECK(scrape(sink).at("trainerd_device_findings_total{kind=\"xid\"}") == 0);
  sink.on_device_finding({.rank = 3, .kind = "xid"});
  CHECK(scrape(sink).at("trainerd_device_findings_total{kind=\"xid\"}") == 1);
  CHECK(scrape(sink).at("trainerd_device_findings_total{kind=\"ecc\"}") == 0);
}

TEST_CASE("the plan's figures and their errors are metrics once they are known") {
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  sink.on_start(served_run());
  CHECK(scrape(sink).count(R"(trainerd_plan_error_ratio{term="step_seconds"})") == 0);
  sink.on_prediction({5,
                      20,
                      {{PredictionTerm::Kind::step_seconds, "step_seconds", 2, 2.5, 0.25},
                       {PredictionTerm::Kind::part_seconds, "compute", 1.5, 1.75, 0.125},
                       {PredictionTerm::Kind::memory_bytes, "memory_bytes", 1000, 1000, 0}}});
  const auto m = scrape(sink);
  CHECK(m.at(R"(trainerd_plan_error_ratio{term="step_seconds"})") == 0.25);
  CHECK(m.at(R"(trainerd_plan_error_ratio{term="compute"})") == 0.125);
  CHECK(m.at(R"(trainerd_plan_error_ratio{term="memory_bytes"})") == 0);
  CHECK(m.at(R"(trainerd_plan_seconds{term="step_seconds"})") == 2);
  CHECK(m.at("trainerd_plan_memory_bytes") == 1000);
}

TEST_CASE("each validation set and each set of questions has series with its name") {
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  sink.on_start(served_run());
  sink.on_evaluation({.step = 6,
                      .loss = 0,
                      .tokens = 1,
                      .seconds = 1,
                      .sets = {{.set = "web", .loss = 0, .tokens = 1, .bits_per_byte = 0.75},
                               {.set = "code", .loss = 2, .tokens = 1}},
                      .choices = {{.set = "quiz", .questions = 4, .accuracy = 0.25, .accuracy_norm = 0.5}}});
  const auto m = scrape(sink);
  CHECK(m.count("trainerd_validation_loss") == 0);
  CHECK(m.at(R"(trainerd_validation_loss{set="web"})") == 0);
  CHECK(m.at(R"(trainerd_validation_perplexity{set="web"})") == 1);
  CHECK(m.at(R"(trainerd_validation_bpb{set="web"})") == 0.75);
  CHECK(m.at(R"(trainerd_validation_loss{set="code"})") == 2);
  CHECK(m.count(R"(trainerd_validation_bpb{set="code"})") == 0);
  CHECK(m.at(R"(trainerd_choice_accuracy_ratio{set="quiz"})") == 0.25);
  CHECK(m.at(R"(trainerd_choice_accuracy_norm_ratio{set="quiz"})") == 0.5);
}

TEST_CASE("promtool finds nothing to complain about") {
  if (std::system("command -v promtool >/dev/null") != 0) {
    WARN("promtool is not installed (package prometheus): the metrics' form was not checked");
    return;
  }
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  sink.on_start(served_run());
  sink.on_step(served_step(5));
  sink.on_evaluation({.step = 6, .loss = 2.75, .tokens = 100, .seconds = 1});
  sink.on_checkpoint({.step = 6, .bytes = 1, .snapshot_seconds = 0.02, .write_seconds = 0.7, .path = "p"});
  sink.on_prediction({5,
                      20,
                      {{PredictionTerm::Kind::step_seconds, "step_seconds", 2, 2.5, 0.25},
                       {PredictionTerm::Kind::memory_bytes, "memory_bytes", 1000, 1000, 0}}});
  sink.on_rank_status({.rank = 0, .step = 5, .steps = 1, .time = {}, .resident_bytes = 1});
  const TempDir dir;
  write_file(dir / "metrics", http_get(sink.address(), "/metrics"));
  const int status =
      std::system(("promtool check metrics <" + dir / "metrics" + " >" + dir / "out" + " 2>&1").c_str());
  INFO(read_file(dir / "out"));
  CHECK(status == 0);
  CHECK(read_file(dir / "out").empty());
}

TEST_CASE("a port in use stands for the next free one") {
  const PrometheusSink first({.listen = "127.0.0.1:0"});
  CHECK_FALSE(first.moved());
  const PrometheusSink second({.listen = first.address()});
  const PrometheusSink third({.listen = first.address()});
  CHECK(second.moved());
  CHECK(third.moved());
  const auto port = [](const PrometheusSink& sink) {
    return std::stoi(sink.address().substr(sink.address().rfind(':') + 1));
  };
  CHECK(port(second) > port(first));
  CHECK(port(third) > port(second));
  CHECK(scrape(third).count("trainerd_step_seconds_count") == 1);
}

TEST_CASE("connections that say nothing do not keep others waiting") {
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(connect_to(sink.address()));
  const auto begin = std::chrono::steady_clock::now();
  CHECK(scrape(sink).count("trainerd_step_seconds_count") == 1);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(8));
}

TEST_CASE("a bad address is a spec error that names it") {
  for (const std::string listen : {"192.0.2.1:0", "nonsense", "127.0.0.1:", "127.0.0.1:70000",
                                   "127.0.0.1:80,127.0.0.1:81", "127.0.0.1:80s"}) {
    INFO(listen);
    CHECK(message_of<SpecError>([&] { PrometheusSink second({.listen = listen}); }).find(listen) !=
          std::string::npos);
  }
}

TEST_CASE(
    "what the supervision finds is counted by kind, slow ranks are shown while they are slow, and the last "
    "recovery") {
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  sink.on_start(served_run());
  CHECK(scrape(sink).at("trainerd_hangs_total{kind=\"link\"}") == 0);
  sink.on_hang({"stopped"});
  CHECK(scrape(sink).at("trainerd_hangs_total{kind=\"stopped\"}") == 1);
  CHECK(scrape(sink).at("trainerd_spikes_total{action=\"rollback\"}") == 0);
  sink.on_spike({"skip"});
  sink.on_spike({"skip"});
  CHECK(scrape(sink).at("trainerd_spikes_total{action=\"skip\"}") == 2);
  CHECK(scrape(sink).at("trainerd_preflight_findings_total{part=\"clock\"}") == 0);
  sink.on_preflight({"clock"});
  CHECK(scrape(sink).at("trainerd_preflight_findings_total{part=\"clock\"}") == 1);
  sink.on_link({.from_rank = 3,
                .to_rank = 5,
                .from_node = 1,
                .to_node = 2,
                .latency_seconds = 2e-5,
                .bytes_per_second = 1e9});
  const std::string link = R"({from_node="1",from_rank="3",to_node="2",to_rank="5"})";
  CHECK(scrape(sink).at("trainerd_link_latency_seconds" + link) == 2e-5);
  CHECK(scrape(sink).at("trainerd_link_bytes_per_second" + link) == 1e9);
  CHECK(scrape(sink).count("trainerd_recovery_seconds") == 0);
  for (const double seconds : {2.5, 0.75}) {
    NoticeRecord recovered{.kind = NoticeKind::recovered, .step = 4, .message = "recovered", .details = {}};
    recovered.recovery = Recovery{.total_seconds = seconds};
    sink.on_notice(recovered);
    CHECK(scrape(sink).at("trainerd_recovery_seconds") == seconds);
  }
  const std::string slow = "trainerd_straggler_ratio{rank=\"3\"}";
  sink.on_straggler({3, 1, 0.25});
  CHECK(scrape(sink).at(slow) == 0.25);
  sink.on_straggler({3, 1, 0});
  CHECK(scrape(sink).count(slow) == 0);
  sink.on_straggler({3, 1, 0.5});
  sink.on_restart({});  // new workers must be found slow again
  CHECK(scrape(sink).count(slow) == 0);
}

TEST_CASE("a restart is counted, and what the workers after it count is added to what was before") {
  PrometheusSink sink({.listen = "127.0.0.1:0"});
  sink.on_start(served_run());
  CHECK(scrape(sink).at("trainerd_restarts_total") == 0);
  const double start = scrape(sink).at("trainerd_run_tokens");
  StepRecord step{.step = 7, .tokens = static_cast<std::int64_t>(start) + 300, .mfu = {}, .time = {}};
  step.widened_gemms = 40;
  sink.on_step(step);
  sink.on_restart({.step = 5, .tokens = static_cast<std::int64_t>(start) + 100});
  auto m = scrape(sink);
  CHECK(m.at("trainerd_restarts_total") == 1);
  CHECK(m.at("trainerd_step") == 5);
  CHECK(m.at("trainerd_run_tokens") == start + 100);
  step = {.step = 6, .tokens = static_cast<std::int64_t>(start) + 200, .mfu = {}, .time = {}};
  step.widened_gemms = 10;
  sink.on_step(step);
  m = scrape(sink);
  CHECK(m.at("trainerd_tokens_total") == 400);  // repeated tokens count again
  CHECK(m.at("trainerd_run_tokens") == start + 200);
  CHECK(m.at("trainerd_widened_gemms_total") == 50);
}
