// Messages between agents, the leader's admission of nodes, and its records of checkpoint parts.

#include "core/run/nodes/membership.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <thread>

#include "core/run/agent/checkpoint_parts.h"
#include "core/run/agent/output_directory.h"
#include "core/spec/spec.h"
#include "core/version/version.h"
#include "kernels/base/error.h"
#include "tests/core/run/log_lines.h"
#include "tests/io/temp_dir.h"

using namespace trainerd;
using namespace trainerd::core;

namespace {

job::JobSpec some_job() {
  return spec::parse_job(
      "steps: 20\nmodel: {layers: 2, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 32}\n"
      "batch: {global: 8, micro: 2}\ndata: {train: [a.txt]}\nparallel: {dp: 2}\ncluster: {nodes: 2}\n",
      "job.yaml");
}

/// What the leader of two nodes reports if the other joins with `text`: "all have met" or an error.
std::string leader_meets(const std::string& text) {
  // The leader takes this port, which is free again by then.
  const std::uint16_t port = base::local_port(base::listen_at({"127.0.0.1", 0}).get());
  run::MembershipOptions options;
  options.nodes.nodes = 2;
  options.rendezvous = {"127.0.0.1", port};
  options.timeout_seconds = 2;
  options.token = parallel::JobToken::random();
  std::thread other([&] {
    std::string why;
    base::UniqueFd joined;
    for (int i = 0; i < 200 && !joined; ++i) {
      joined = parallel::join_store(options.rendezvous, *options.token, text, 1, why);
      if (!joined) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    char received[4096];
    while (joined && ::recv(joined.get(), received, sizeof(received), 0) > 0) {}
  });
  const base::UniqueFd no_signal(::eventfd(0, EFD_CLOEXEC));
  std::string said = "all have met";
  try {
    const run::Membership membership(options, some_job(), no_signal.get());
  } catch (const base::Error& error) {
    said = std::string(base::to_string(error.kind())) + ": " + error.what();
  }
  other.join();
  return said;
}

io::TrainingState state_at(std::int64_t step, std::int64_t cursor) {
  io::TrainingState state;
  state.step = step;
  state.cursor = cursor;
  return state;
}

run::Hello good_hello() { return {1, 2, version::version(), "gpu7", run::shared_job(some_job())}; }

}  // namespace

TEST_CASE("messages between agents survive a round trip", "[membership]") {
  const run::Hello hello = run::decode_hello(run::encode(good_hello()));
  CHECK(hello.node == 1);
  CHECK(hello.nodes == 2);
  CHECK(hello.host == "gpu7");
  CHECK(hello.job_yaml == run::shared_job(some_job()));
  run::Hello rejoins = good_hello();
  rejoins.lost = "node 0 was lost";
  rejoins.folders = {{10, 2}};
  rejoins.faults_done = {"kill-5-1"};
  rejoins.spare = true;
  rejoins = run::decode_hello(run::encode(rejoins));
  CHECK((rejoins.lost == "node 0 was lost" && rejoins.spare));
  CHECK(rejoins.folders == std::map<std::int64_t, std::int64_t>{{10, 2}});
  CHECK(rejoins.faults_done == std::vector<std::string>{"kill-5-1"});
  const auto crossed = [](const run::NodeMessage& message) {
    return run::decode_node_message(run::encode(message));
  };
  const run::Go go = std::get<run::Go>(crossed(run::Go{
      "run7", "runs/a/checkpoints/step-00000010", 10, 80, 2560, {40, {{2, 7}}}, kernels::Isa::avx2, true}));
  CHECK(go.run == "run7");
  CHECK(go.last_good == "runs/a/checkpoints/step-00000010");
  CHECK((go.step == 10 && go.cursor == 80 && go.tokens == 2560));
  CHECK((go.order == io::DataOrder{40, {{2, 7}}} && go.evaluate_first));
  const run::End end = std::get<run::End>(crossed(run::End{true, base::ErrorKind::data, "line\n\xff", 15}));
  CHECK((end.failed && end.kind == base::ErrorKind::data && end.stop_signal == 15));
  CHECK(end.message.starts_with("line\n"));
  const io::TensorSlice box{"w", kernels::DType::bf16, {4, 6}, {1, 2}, {3, 4}, "w#1"};
  const auto shards = std::get<run::ShardsSaved>(
      crossed(run::ShardsSaved{10, 2, {{{"shard-00002.safetensors", 99, "ab"}, {box, box}}}, 0.25, 0.5}));
  REQUIRE(shards.shards.size() == 1);
  CHECK((shards.step == 10 && shards.first_rank == 2 && shards.shards[0].info.bytes == 99 &&
         shards.shards[0].info.xxh3 == "ab"));
  REQUIRE(shards.shards[0].slices.size() == 2);
  const io::TensorSlice& slice = shards.shards[0].slices[1];
  CHECK((slice.name == box.name && slice.dtype == box.dtype && slice.stored == box.stored));
  CHECK((slice.logical_shape == box.logical_shape && slice.begin == box.begin && slice.shape == box.shape));
  CHECK((shards.snapshot_seconds == 0.25 && shards.write_seconds == 0.5));
  const auto ready =
      std::get<run::NodeReady>(crossed(run::NodeReady{2,
                                                      64,
                                                      "a.txt 12 \"x\"",
                                                      {{"data.valid", "v \"x\""}},
                                                      {{3, "a CPU", 5e9}},
                                                      {{3, 5, 1e-5, 2e9}},
                                                      {{3, "a CPU, tp 0", 0xffffffffffffffffu, 7}},
                                                      "storage: slow",
                                                      7.5,
                                                      2.5}));
  CHECK(ready.links == std::vector<run::LinkTime>{{3, 5, 1e-5, 2e9}});
  CHECK(ready.canaries == std::vector<run::CanaryResult>{{3, "a CPU, tp 0", 0xffffffffffffffffu, 7}});
  const auto doing =
      std::get<run::RanksDoing>(crossed(run::RanksDoing{2, {{3, "forward", "barrier #1", 0.5}}}));
  CHECK(doing.ranks == std::vector<io::RankDoingRecord>{{3, "forward", "barrier #1", 0.5}});
  const auto found = std::get<run::DeviceFound>(crossed(run::DeviceFound{3, {"xid", "XID 79", true}}));
  CHECK((found.rank == 3 && found.finding.kind == "xid" && found.finding.text == "XID 79" &&
         found.finding.error));
  CHECK((ready.attempt == 2 && ready.threads == 64 && ready.data_fingerprint == "a.txt 12 \"x\""));
  CHECK(ready.evaluated == std::map<std::string, std::string>{{"data.valid", "v \"x\""}});
  REQUIRE(ready.rates.size() == 1);
  CHECK((ready.rates[0].rank == 3 && ready.rates[0].device == "a CPU" && ready.rates[0].gemm_flops == 5e9));
  CHECK((ready.storage == "storage: slow" && ready.wall_seconds == 7.5 && ready.clock_ahead == 2.5));
  CHECK(std::get<run::NodeFinished>(crossed(run::NodeFinished{3})).attempt == 3);
  CHECK(std::get<run::NodeFailed>(crossed(run::NodeFailed{base::ErrorKind::device, "x", 2})).weight == 2);
  const auto died = std::get<run::NodeFailed>(crossed(
      run::NodeFailed{base::ErrorKind::comm, "x", 1, true, {.what = "rank 1 by signal 7", .own = true}}));
  CHECK((died.death && died.cause.what == "rank 1 by signal 7" && died.cause.own));
  CHECK(std::get<run::NodeFailed>(crossed(run::NodeFailed{.message = "x", .retry = true})).retry);
  CHECK_FALSE(std::get<run::NodeFailed>(crossed(run::NodeFailed{.message = "x"})).retry);
  CHECK(std::get<run::Regroup>(crossed(run::Regroup{3})).attempt == 3);
  const run::Held held =
      std::get<run::Held>(crossed(run::Held{3, {5, 10}, {10}, true, {{2, 10, 40, 2560, true}}}));
  REQUIRE(held.copies.size() == 1);
  CHECK((held.copies[0].node == 2 && held.copies[0].step == 10 && held.copies[0].cursor == 40));
  CHECK((held.copies[0].tokens == 2560 && held.copies[0].self_contained));
  CHECK(std::get<run::SaveHeld>(crossed(run::SaveHeld{12})).step == 12);
  const auto copy = std::get<run::CopySnapshot>(crossed(run::CopySnapshot{12, 2, 7}));
  CHECK((copy.step == 12 && copy.attempt == 2 && copy.kept_by_all == 7));
  const auto unfetched = std::get<run::FetchFailed>(crossed(run::FetchFailed{12, 2}));
  CHECK((unfetched.step == 12 && unfetched.attempt == 2));
  const auto copied = std::get<run::SnapshotCopied>(crossed(run::SnapshotCopied{12, 2, true}));
  CHECK((copied.step == 12 && copied.attempt == 2 && copied.kept));
  CHECK((held.attempt == 3 && held.steps == std::vector<std::int64_t>{5, 10} && held.self_contained));
  CHECK(held.taken == std::vector<std::int64_t>{10});
  const run::Go again = std::get<run::Go>(crossed(run::Go{.step = 7,
                                                          .resume_path = "c/step-00000007",
                                                          .attempt = 2,
                                                          .from_memory = true,
                                                          .reason = "a death",
                                                          .fetch = {1, 4}}));
  CHECK(again.fetch == std::vector<std::int64_t>{1, 4});
  CHECK((again.attempt == 2 && again.from_memory && again.reason == "a death"));
  CHECK(again.resume_path == "c/step-00000007");
  CHECK(std::get<run::TakePlace>(crossed(run::TakePlace{3})).node == 3);
  CHECK(std::holds_alternative<run::Resize>(crossed(run::Resize{})));
  CHECK(std::get<run::Go>(crossed(run::Go{.nodes = 3})).nodes == 3);
  CHECK(std::holds_alternative<run::WaitAsSpare>(crossed(run::WaitAsSpare{})));
  CHECK(run::decode_beat_hello(run::encode(run::BeatHello{"a7"}))->agent == "a7");
  CHECK_FALSE(run::decode_beat_hello(run::encode(good_hello())).has_value());
  const run::StopRequest stop = std::get<run::StopAsked>(crossed(run::StopAsked{{"SIGINT", 2}})).request;
  CHECK((stop.reason == "SIGINT" && stop.exit_signal == 2));
  const auto completed = std::get<run::Completed>(crossed(run::Completed{5, "p", 2}));
  CHECK((completed.path == "p" && completed.folder == 2));
  CHECK(std::get<run::SaveDropped>(crossed(run::SaveDropped{5})).step == 5);
  CHECK(std::get<run::SaveDropped>(crossed(run::SaveDropped{5, 2})).attempt == 2);
  const auto failed = std::get<run::SaveFailed>(crossed(run::SaveFailed{5, "disk \"x\" is full", 0.5, 3}));
  CHECK((failed.step == 5 && failed.message == "disk \"x\" is full" && failed.retry_seconds == 0.5 &&
         failed.failures == 3));
}

TEST_CASE("what agents say of the state that they hold arrives as it was", "[membership]") {
  const auto crossed = [](const run::NodeMessage& message) {
    return run::decode_node_message(run::encode(message));
  };
  const run::StateCut cut{"run7", 2, 40, 160, 10'240};
  const run::Go go =
      std::get<run::Go>(crossed(run::Go{.cut = cut, .sources = {{2, 1, true}, {0, 0}}, .head = "head"}));
  CHECK((go.cut == cut && go.head == "head"));
  CHECK(go.sources == std::vector<run::StateSource>{{2, 1, true}, {0, 0, false}});
  CHECK(std::get<run::ShowState>(crossed(run::ShowState{3})).number == 3);
  const io::TensorSlice box{"w", kernels::DType::bf16, {4, 6}, {1, 2}, {3, 4}, "w#1"};
  const auto shown = std::get<run::StateShown>(
      crossed(run::StateShown{3, true, {{cut, 2, false, false, "head", {box, box}}}}));
  REQUIRE((shown.number == 3 && shown.last && shown.offers.size() == 1));
  const run::StateOffer& offer = shown.offers[0];
  CHECK((offer.cut == cut && offer.node == 2 && !offer.taken && !offer.own && offer.head == "head"));
  REQUIRE(offer.slices.size() == 2);
  CHECK((offer.slices[1].name == "w" && offer.slices[1].begin == box.begin));
  CHECK(std::get<run::Resize>(crossed(run::Resize{true})).from_disk);
  CHECK(std::get<run::End>(crossed(run::End{.failed = true, .excludes = true})).excludes);
  CHECK_FALSE(std::get<run::End>(crossed(run::End{.failed = true})).excludes);
}

TEST_CASE("what a node sees of its ranks arrives as it was", "[membership]") {
  const auto crossed = [](const run::NodeMessage& message) {
    return run::decode_node_message(run::encode(message));
  };
  CHECK(std::get<run::HangSuspected>(crossed(run::HangSuspected{3})).attempt == 3);
  const auto asked = std::get<run::ShowRanks>(crossed(run::ShowRanks{3, 7}));
  CHECK((asked.attempt == 3 && asked.number == 7));
  run::RankSight sight{.rank = 5, .node = 1, .activity = train::Activity::backward, .step = 12};
  sight.still.stopped = 6;
  const auto seen = std::get<run::RankSeen>(crossed(run::RankSeen{3, 7, sight}));
  CHECK((seen.attempt == 3 && seen.number == 7 && seen.sight.rank == 5 && seen.sight.step == 12));
  CHECK((seen.sight.activity == train::Activity::backward && seen.sight.still.stopped == 6));
  const auto times = std::get<run::RankTimes>(crossed(run::RankTimes{3, {{5, 40, 2.5}, {6, 41, 3.5}}}));
  REQUIRE(times.ranks.size() == 2);
  CHECK((times.attempt == 3 && times.ranks[1].rank == 6 && times.ranks[1].steps == 41 &&
         times.ranks[1].compute_seconds == 3.5));
}

TEST_CASE("saved shards of a node with many ranks are split into several messages, by rank", "[membership]") {
  const io::TensorSlice box{"w", kernels::DType::f32, {4}, {0}, {4}};
  run::ShardsSaved whole{.step = 5, .first_rank = 8, .shards = {}, .write_seconds = 2, .attempt = 3};
  for (const std::size_t boxes : {2, 1, 5, 0, 3})
    whole.shards.push_back(
        {{"shard-of-" + std::to_string(boxes), 1, ""}, std::vector<io::TensorSlice>(boxes, box)});
  const std::vector<run::ShardsSaved> parts = run::in_parts(whole, 3);
  std::vector<std::vector<std::string>> files;
  for (const run::ShardsSaved& part : parts) {
    CHECK((part.step == 5 && part.write_seconds == 2 && part.attempt == 3));
    files.emplace_back();
    for (const io::WrittenShard& shard : part.shards) files.back().push_back(shard.info.file);
  }
  CHECK(files == std::vector<std::vector<std::string>>{
                     {"shard-of-2", "shard-of-1"}, {"shard-of-5"}, {"shard-of-0", "shard-of-3"}});
  REQUIRE(parts.size() == 3);
  CHECK((parts[0].first_rank == 8 && parts[1].first_rank == 10 && parts[2].first_rank == 11));
  CHECK(run::in_parts(whole).size() == 1);
}

TEST_CASE("text that is no agent's message is a communication error", "[membership]") {
  for (
      const std::string text :
      {"", "{", "[]", "{}", R"({"type":"party"})", R"({"type":"go"})", R"({"type":"stop","signal":"x"})",
       R"({"type":"end","failed":true,"kind":"mood","message":"","signal":0})",
       R"({"type":"shards","step":1,"first":0,"shards":[{}]})",
       R"({"type":"ready","attempt":1,"threads":"8"})",
       R"({"type":"shards","step":1,"first":0,"snapshot_seconds":0,"write_seconds":0,"attempt":1,"shards":[{"file":"a","bytes":1,"xxh3":"","slices":[["w","fp31",[],[],[],""]]}]})"}) {
    INFO(text);
    CHECK_THROWS_AS(run::decode_node_message(text), base::CommError);
    CHECK_THROWS_AS(run::decode_hello(text), base::CommError);
  }
  CHECK_THROWS_WITH(run::decode_node_message("I am node 1"),
                    Catch::StartsWith("a message from another process of the job cannot be read: "));
  CHECK_THROWS_WITH(
      run::decode_node_message(
          R"({"type":"shards","step":1,"first":0,"snapshot_seconds":0,"write_seconds":0,"attempt":1,)"
          R"("shards":[{"file":"a","bytes":1,"xxh3":"","slices":[["w","fp31",[],[],[],""]]}]})"),
      Catch::Contains("a slice of unknown dtype came in a message"));
}

TEST_CASE("a leader admits matching nodes and names the others, with the reason", "[membership]") {
  CHECK(leader_meets(encode(good_hello())) == "all have met");
  // Data may be at other paths on another node.
  job::JobSpec elsewhere = some_job();
  elsewhere.data.train = {"/scratch/node1/a.txt"};
  elsewhere.data.cache_directory = "/scratch/node1/cache";
  run::Hello other_place = good_hello();
  other_place.job_yaml = run::shared_job(elsewhere);
  CHECK(leader_meets(encode(other_place)) == "all have met");
  run::Hello hello = good_hello();
  hello.version = "0.0.1";
  CHECK_THAT(leader_meets(encode(hello)),
             Catch::StartsWith("spec: node 1 (gpu7, 127.0.0.1) runs trainerd 0.0.1 and node 0") &&
                 Catch::EndsWith("; install one version on all nodes"));
  // Another version may have other fields.
  CHECK_THAT(leader_meets(R"({"type":"hello","node":1,"version":"9.0","host":"h","spirit":"kind"})"),
             Catch::Contains("runs trainerd 9.0"));
  hello = good_hello();
  hello.nodes = 3;
  CHECK_THAT(leader_meets(encode(hello)),
             Catch::StartsWith("spec: node 1 (gpu7, 127.0.0.1) was started as one of 3 nodes"));
  for (const std::int64_t node : {-1, 0, 2}) {
    hello = good_hello();
    hello.node = node;
    CHECK_THAT(leader_meets(encode(hello)), Catch::Contains("is none of the nodes 1 to 1"));
  }
  hello = good_hello();
  hello.job_yaml.replace(hello.job_yaml.find("steps: 20"), 9, "steps: 21");
  CHECK_THAT(leader_meets(encode(hello)),
             Catch::Contains("another job") && Catch::Contains("'steps: 21' there, 'steps: 20' at node 0"));
  // A connection that is no agent is dropped and does not end the rendezvous.
  const test::LogLines log;
  CHECK_THAT(leader_meets("I am node 1"),
             Catch::StartsWith("comm: of 2 nodes these did not come") && Catch::Contains(": node 1;"));
  CHECK_THAT(log.text(), Catch::Contains("warning: the rendezvous dropped 127.0.0.1: "));
}

TEST_CASE("a node whose processor lacks an instruction set is named", "[membership]") {
  run::Hello hello = good_hello();
  hello.isa = kernels::Isa::portable;
  const kernels::Isa here = kernels::detect_cpu(1, job::most_isa(some_job())).isa;
  const test::LogLines log;
  CHECK(leader_meets(encode(hello)) == "all have met");
  if (here == kernels::Isa::portable) return;
  CHECK_THAT(log.text(),
             Catch::Contains("warning: all nodes compute with portable kernels: node 1 (gpu7) has no more, "
                             "node 0 has " +
                             std::string(to_string(here)) + "\n"));
}

TEST_CASE("a checkpoint of several nodes is complete when each rank's shard and the leader's state are there",
          "[membership]") {
  run::CheckpointParts parts(3);
  const auto shard = [](const std::string& file) { return io::WrittenShard{{file, 8, "x"}, {}}; };
  CHECK_FALSE(parts.add(10, 1, {shard("1"), shard("2")}, 0.5, 2).has_value());
  CHECK_FALSE(parts.add(15, 1, {shard("1"), shard("2")}, 0, 0).has_value());
  CHECK_FALSE(parts.none());
  CHECK(parts.incomplete() == std::vector<std::int64_t>{10, 15});
  parts.begin(state_at(10, 7), 1);
  const auto job = parts.add(10, 0, {shard("0")}, 0.25, 3);
  REQUIRE(job.has_value());
  CHECK(job->part == run::CheckpointWriter::Part::completion);
  CHECK(parts.incomplete() == std::vector<std::int64_t>{15});
  CHECK(job->state.cursor == 7);
  REQUIRE(job->written.size() == 3);
  for (std::size_t rank = 0; rank < 3; ++rank) CHECK(job->written[rank].info.file == std::to_string(rank));
  CHECK((job->snapshot_seconds == 0.5 && job->write_seconds == 3));
  CHECK_FALSE(parts.none());
  parts.begin(state_at(15, 9), 1);
  CHECK(parts.add(15, 0, {shard("0")}, 0, 0).has_value());
  CHECK(parts.none());
}

TEST_CASE("records of checkpoints after a restart's step are dropped, and these steps can be saved again",
          "[membership]") {
  run::CheckpointParts parts(2);
  const auto shard = [](const std::string& file) { return io::WrittenShard{{file, 8, "x"}, {}}; };
  parts.begin(state_at(5, 1), 1);
  parts.begin(state_at(10, 2), 1);
  CHECK_FALSE(parts.add(10, 0, {shard("old")}, 0, 0).has_value());
  parts.drop(15);
  CHECK((parts.dropped(15) && !parts.dropped(10)));
  parts.forget_after(5);
  CHECK_FALSE(parts.dropped(15));
  CHECK_FALSE(parts.none());  // step 5 is still being saved
  for (const std::int64_t step : {10, 15}) {
    parts.begin(state_at(step, 3), 1);
    CHECK_FALSE(parts.add(step, 1, {shard("1")}, 0, 0).has_value());
    const auto job = parts.add(step, 0, {shard("new")}, 0, 0);
    REQUIRE(job.has_value());
    CHECK(job->written[0].info.file == "new");
  }
}

TEST_CASE("a checkpoint that was given up can be written from a snapshot that is still held",
          "[membership]") {
  run::CheckpointParts parts(1);
  const io::WrittenShard shard{{"0", 8, "x"}, {}};
  parts.drop(5);
  parts.begin(state_at(5, 1), 1);
  CHECK_FALSE(parts.add(5, 0, {shard}, 0, 0).has_value());
  parts.retake(5);
  parts.begin(state_at(5, 1), 2);
  const auto job = parts.add(5, 0, {shard}, 0, 0);
  REQUIRE(job.has_value());
  CHECK(job->folder == 2);
}

TEST_CASE("only the owner can read the job's token, which stays while other nodes may join", "[membership]") {
  const test::TempDir dir;
  const std::string output = dir / "runs/a", file = run::TokenFile::path(output);
  CHECK_FALSE(run::TokenFile::read(output).has_value());
  {
    const auto token = parallel::JobToken::random();
    const run::TokenFile left(output, token);
    CHECK(run::TokenFile::read(output)->text() == token.text());
    CHECK(std::filesystem::status(file).permissions() ==
          (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
    std::filesystem::permissions(file, std::filesystem::perms::group_read,
                                 std::filesystem::perm_options::add);
    CHECK_THROWS_WITH(run::TokenFile::read(output),
                      file +
                          ", the job's token, can be used by others than its owner, or its file system does "
                          "not say by whom; give all agents one token in the environment variable "
                          "TRAINERD_TOKEN instead");
    std::filesystem::permissions(file, std::filesystem::perms::group_read,
                                 std::filesystem::perm_options::remove);
  }
  CHECK_FALSE(std::filesystem::exists(output));
  {
    // The token file of another run and other files stay.
    const run::TokenFile first(output, parallel::JobToken::random());
    const auto second = parallel::JobToken::random();
    auto later = std::make_optional<run::TokenFile>(output, second);
    test::write_file(output + "/other", "x");
    CHECK(run::TokenFile::read(output)->text() == second.text());
    later.reset();
    CHECK_FALSE(std::filesystem::exists(file));
  }
  CHECK(std::filesystem::exists(output + "/other"));
  // An incomplete file is ignored.
  test::write_file(file, "0123456789abcdef0123");
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  CHECK_FALSE(run::TokenFile::read(output).has_value());
  CHECK_THROWS_AS(parallel::JobToken("short", "TRAINERD_TOKEN"), base::SpecError);
  test::write_file(dir / "file", "");
  CHECK_THROWS_WITH(run::TokenFile(dir / "file", parallel::JobToken::random()),
                    Catch::StartsWith("the job's token cannot be written: " + (dir / "file") + "/.token: ") &&
                        Catch::EndsWith("; set `output` to a directory that can be written"));
}

TEST_CASE("an agent distinguishes a missing leader, one without a token, and one of another job",
          "[membership]") {
  const test::TempDir dir;
  job::JobSpec job = some_job();
  job.output = dir / "run";
  run::MembershipOptions options;
  options.nodes.nodes = 2;
  options.nodes.node = 1;
  options.timeout_seconds = 0.3;
  base::UniqueFd listener = base::listen_at({"127.0.0.1", 0});
  options.rendezvous = {"127.0.0.1", base::local_port(listener.get())};
  const base::UniqueFd no_signal(::eventfd(0, EFD_CLOEXEC));
  const auto said = [&] {
    try {
      const run::Membership membership(options, job, no_signal.get());
    } catch (const base::CommError& error) {
      return std::string(error.what());
    }
    return std::string("all have met");
  };
  const auto token = parallel::JobToken::random();
  const parallel::StoreServer server(std::move(listener), token, [](const std::string&) {});
  CHECK_THAT(said(), Catch::Contains("left no token") && Catch::Contains("TRAINERD_TOKEN"));
  const run::TokenFile other(job.output, parallel::JobToken::random());
  CHECK_THAT(said(), Catch::Contains("a job with another token"));
  options.rendezvous.port = base::local_port(base::listen_at({"127.0.0.1", 0}).get());
  CHECK_THAT(said(), Catch::Contains("Connection refused"));
}

TEST_CASE("a node sees whether it shares the leader's output directory", "[membership]") {
  const test::TempDir dir;
  const run::OutputDirectory leader(dir / "run");
  CHECK_THROWS_AS(run::OutputDirectory::marked(dir / "run", "run7", 0.1), base::SpecError);
  leader.mark("a longer name of another run");
  CHECK_THROWS_AS(run::OutputDirectory::marked(dir / "run", "run7", 0.1), base::SpecError);
  leader.mark("run7");
  CHECK(run::OutputDirectory::marked(dir / "run", "run7", 5).checkpoints() == leader.checkpoints());
  CHECK_THROWS_AS(run::OutputDirectory::marked(dir / "other", "run7", 0.1), base::SpecError);
}
