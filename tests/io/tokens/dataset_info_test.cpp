#include "io/tokens/dataset_info.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "io/tokens/token_source.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using trainerd::base::DataError;
using namespace trainerd::io;
using namespace trainerd::test;
using Catch::Matchers::Contains;

TEST_CASE("a dataset.json beside token files puts its tokenizer into the data's fingerprint") {
  const TempDir dir;
  DataOptions data{.train = {dir / "a"}, .valid = {dir / "b"}, .format = DataFormat::tokens};
  data.dtype = TokenType::uint16;
  for (const char* name : {"a/x.bin", "b/x.bin"})
    write_file(dir / name, raw(std::vector<std::uint16_t>{1, 2, 3, 4, 5, 6}));
  const auto open = [&](std::int64_t vocab) {
    return TokenSource(data.train, data, 2, vocab, 1, SampleOrder::in_order).fingerprint();
  };
  const std::string without = open(10);
  CHECK_THAT(without, !Contains("tokenizer"));
  write_file(dir / "a/dataset.json", R"({"tokenizer": {"hash": "abc", "vocab": 12}})");
  CHECK(open(12) == without + ", tokenizer abc");
  CHECK_THAT(message_of<DataError>([&] { open(11); }), Contains("vocabulary of 12, but model.vocab is 11"));
  check_one_tokenizer(data, 12, true);
  write_file(dir / "b/dataset.json", R"({"tokenizer": {"hash": "abd", "vocab": 12}})");
  CHECK_THAT(message_of<DataError>([&] { check_one_tokenizer(data, 12, true); }),
             Contains("name different tokenizers (abc, abd)"));
  data.train = {dir / "a", dir / "b"};
  CHECK_THAT(message_of<DataError>([&] { open(12); }), Contains("name different tokenizers"));
  write_file(dir / "b/dataset.json", R"({"tokenizer": 1})");
  CHECK_THAT(message_of<DataError>([&] { open(12); }), Contains("b/dataset.json"));
}

TEST_CASE(
    "a directory of prepared data of which files are missing is refused, and its files by name are not") {
  const TempDir dir;
  DataOptions data{.train = {dir.path()}, .valid = {}, .format = DataFormat::tokens};
  data.dtype = TokenType::uint16;
  write_file(dir / "a/dataset.json",
             R"({"tokenizer": {"hash": "abc", "vocab": 12}, "files": [{"name": "x"}, {"name": "y"}]})");
  for (const char* name : {"a/x.bin", "a/x.idx", "a/y.idx"}) write_file(dir / name, std::string(64, '\0'));
  const auto message = [&] { return message_of<DataError>([&] { list_data(data.train, data.format, {}); }); };
  CHECK_THAT(message(),
             Contains("a/y.bin: it is not there, and the dataset.json beside it names it: copy it too"));
  write_file(dir / "a/y.bin", std::string(64, '\0'));
  CHECK(message().empty());
  std::filesystem::remove(dir / "a/x.idx");
  CHECK_THAT(message(), Contains("a/x.idx: it is not there"));
  CHECK(list_data({dir / "a/x.bin"}, data.format, {}).size() == 1);
  write_file(dir / "a/dataset.json", R"({"files": [{}]})");
  CHECK_THAT(message(), Contains("a/dataset.json: \"name\" is missing"));
  write_file(dir / "a/dataset.json", R"(["of another program"])");
  CHECK(message().empty());
}
