#include "io/tokens/dataset_info.h"

#include <catch2/catch.hpp>

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
