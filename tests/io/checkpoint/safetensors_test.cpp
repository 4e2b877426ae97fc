#include <catch2/catch.hpp>
#include <climits>

#include "io/checkpoint/safetensors.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

using trainerd::base::CheckpointError;
using trainerd::kernels::DType;
using namespace trainerd::io;
using namespace trainerd::test;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string file_with(const std::string& json, std::size_t data_bytes) {
  return raw<std::uint64_t>({json.size()}) + json + std::string(data_bytes, '\0');
}

std::string why_refused(const std::string& file) {
  return message_of<CheckpointError>(
      [&] { parse_safetensors(bytes_of(file), static_cast<std::int64_t>(file.size())); });
}

using Shape = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("a header as the format's documentation shows it is read") {
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},)"
      R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"s":{"dtype":"F64","shape":[],"data_offsets":[30,38]}}   )";
  const std::string file = file_with(json, 38);
  const SafetensorsHeader header = parse_safetensors(bytes_of(file), static_cast<std::int64_t>(file.size()));
  REQUIRE(header.tensors.size() == 3);
  CHECK(header.tensors[0].name == "a");
  CHECK(header.tensors[0].shape == Shape{2, 3});
  CHECK(header.find("b")->dtype == DType::bf16);
  CHECK(header.find("b")->begin == 24);
  CHECK(header.find("s")->shape.empty());
  CHECK(header.find("nothing") == nullptr);
  CHECK(header.metadata.at("format") == "pt");
  CHECK(header.data_offset == static_cast<std::int64_t>(8 + json.size()));
}

TEST_CASE("files written by the reference implementation are read") {
  const std::string file = read_file(std::string(TRAINERD_SOURCE_DIR) + "/tests/golden/llama.safetensors");
  REQUIRE_FALSE(file.empty());
  const SafetensorsHeader header = parse_safetensors(bytes_of(file), static_cast<std::int64_t>(file.size()));
  REQUIRE(header.find("tokens") != nullptr);
  CHECK(header.find("tokens")->dtype == DType::i32);
  CHECK(header.find("tokens")->shape == Shape{12, 4, 25});
  CHECK(header.find("loss")->dtype == DType::f64);
}

TEST_CASE("a laid out file is whole, aligned, in the order given, and reads back") {
  std::vector<StoredTensor> tensors{{.name = "z", .dtype = DType::f32, .shape = {5, 7}},  // 140 bytes
                                    {.name = "empty", .dtype = DType::f32, .shape = {0, 7}},
                                    {.name = "a \"quoted\" name", .dtype = DType::bf16, .shape = {64}},
                                    {.name = "scalar", .dtype = DType::f64, .shape = {}},
                                    {.name = "bytes", .dtype = DType::u8, .shape = {3}}};
  const SafetensorsLayout layout = lay_out_safetensors(tensors, {{"step", "3"}});
  CHECK(layout.header.size() % 64 == 0);
  REQUIRE(layout.tensors.size() == 5);
  std::int64_t next = 0;
  for (const StoredTensor& t : layout.tensors) {
    CHECK(t.begin % 64 == 0);
    CHECK(t.begin >= next);
    next = t.end;
  }
  CHECK(layout.tensors[0].name == "z");
  CHECK(layout.tensors[0].end == 140);
  const SafetensorsHeader header = parse_safetensors(layout.header, layout.file_bytes);
  CHECK(header.metadata == std::map<std::string, std::string>{{"step", "3"}});
  REQUIRE(header.tensors.size() == 5);
  for (const StoredTensor& t : layout.tensors) {
    const StoredTensor* found = header.find(t.name);
    REQUIRE(found != nullptr);
    CHECK(found->dtype == t.dtype);
    CHECK(found->shape == t.shape);
    CHECK(found->begin == t.begin);
    CHECK(found->end == t.end);
  }
}

TEST_CASE("a laid out file has no hole, as the format demands") {
  const SafetensorsLayout layout = lay_out_safetensors(
      {{.name = "a", .dtype = DType::u8, .shape = {3}}, {.name = "b", .dtype = DType::u8, .shape = {1}}}, {});
  const std::string json(reinterpret_cast<const char*>(layout.header.data()) + 8, layout.header.size() - 8);
  CHECK(json.find(R"("__padding__.0":{"dtype":"U8","shape":[61],"data_offsets":[3,64]})") !=
        std::string::npos);
  CHECK(layout.file_bytes == static_cast<std::int64_t>(layout.header.size()) + 65);
}

TEST_CASE("a header is compact JSON, entries in the order of the tensors, names escaped") {
  const SafetensorsLayout layout =
      lay_out_safetensors({{.name = "a\"\n\xc3\xa9", .dtype = DType::f32, .shape = {8, 2}},
                           {.name = "b", .dtype = DType::f64, .shape = {}}},
                          {{"format", "trainerd"}, {"step", "3"}});
  std::string json(reinterpret_cast<const char*>(layout.header.data()) + 8, layout.header.size() - 8);
  json.erase(json.find_last_not_of(' ') + 1);
  CHECK(json == R"({"__metadata__":{"format":"trainerd","step":"3"},)"
                R"("a\"\n)"
                "\xc3\xa9"
                R"(":{"dtype":"F32","shape":[8,2],"data_offsets":[0,64]},)"
                R"("b":{"dtype":"F64","shape":[],"data_offsets":[64,72]}})");
}

TEST_CASE("a layout refuses names given twice and sizes beyond 63 bits") {
  CHECK_THROWS_AS(lay_out_safetensors({{.name = "a", .shape = {1}}, {.name = "a", .shape = {1}}}, {}),
                  CheckpointError);
  CHECK_THROWS_AS(lay_out_safetensors({{.name = "__metadata__", .shape = {1}}}, {}), CheckpointError);
  CHECK_THROWS_AS(lay_out_safetensors({{.name = "a", .shape = {LLONG_MAX, 2}}}, {}), CheckpointError);
  CHECK_THROWS_AS(lay_out_safetensors({{.name = "a", .shape = {-1}}}, {}), CheckpointError);
}

TEST_CASE("malformed headers are refused with a reason") {
  const auto entry = [](const char* dtype, const char* shape, const char* offsets) {
    return std::string(R"({"dtype":")") + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  const std::string good = entry("U8", "[4]", "[0,4]");
  CHECK(why_refused(file_with(R"({"t":)" + good + "}", 4)).empty());
  CHECK(why_refused("") != "");
  CHECK(why_refused("abc") != "");
  CHECK(why_refused(raw<std::uint64_t>({~0ull}) + "{}").find("18446744073709551615") != std::string::npos);
  CHECK(why_refused(raw<std::uint64_t>({100}) + "{}") != "");
  CHECK(why_refused(file_with("[]", 0)).find("not an object") != std::string::npos);
  CHECK(why_refused(file_with("{\"t\":", 0)).find("JSON") != std::string::npos);
  CHECK(why_refused(file_with(R"({"t":)" + good + R"(,"t":)" + good + "}", 4)).find("twice") !=
        std::string::npos);
  CHECK(why_refused(file_with(R"({"t":)" + entry("Q4", "[4]", "[0,4]") + "}", 4)).find("Q4") !=
        std::string::npos);
  CHECK(why_refused(file_with(R"({"t":)" + entry("U8", "[-4]", "[0,4]") + "}", 4)).find("negative") !=
        std::string::npos);
  CHECK(why_refused(file_with(R"({"t":)" + entry("U8", "[4.0]", "[0,4]") + "}", 4)) != "");
  CHECK(why_refused(file_with(R"({"t":)" + entry("U8", "[18446744073709551615]", "[0,4]") + "}", 4)) != "");
  CHECK(why_refused(file_with(R"({"t":)" + entry("F32", "[4611686018427387904,4]", "[0,0]") + "}", 0))
            .find("2^63") != std::string::npos);
  CHECK(why_refused(file_with(R"({"t":)" + entry("F32", "[4]", "[0,4]") + "}", 4)).find("16") !=
        std::string::npos);
  CHECK(why_refused(file_with(R"({"t":)" + entry("U8", "[4]", "[4,0]") + "}", 4)) != "");
  CHECK(why_refused(file_with(R"({"t":)" + entry("U8", "[4]", "[0]") + "}", 4)) != "");
  CHECK(why_refused(file_with(R"({"t":)" + good + "}", 5)).find("5") != std::string::npos);
  CHECK(why_refused(file_with(R"({"t":)" + good + "}", 3)) != "");
  CHECK(why_refused(file_with(R"({"t":)" + good + R"(,"u":)" + entry("U8", "[4]", "[2,6]") + "}", 6))
            .find("inside") != std::string::npos);
  CHECK(why_refused(file_with(R"({"t":)" + good + R"(,"u":)" + entry("U8", "[2]", "[5,7]") + "}", 7))
            .find("not at the end") != std::string::npos);
  CHECK(why_refused(file_with(R"({"__metadata__":{"a":1}})", 0)) != "");
  CHECK(why_refused(file_with(R"({"t":{"shape":[]}})", 0)).find("dtype") != std::string::npos);
  CHECK(why_refused(file_with("{\"\xff\":1}", 0)) != "");
  CHECK(why_refused(file_with(std::string(100000, '[') + std::string(100000, ']'), 0)).find("deeper") !=
        std::string::npos);
}

TEST_CASE("a foreign file's dtypes are its own words, and its ranges are checked as ever") {
  const std::string json =
      R"({"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]},"w":{"dtype":"F16","shape":[2,2],"data_offsets":[3,11]}})";
  const std::string file = file_with(json, 11);
  const ForeignHeader header =
      parse_foreign_safetensors(bytes_of(file), static_cast<std::int64_t>(file.size()));
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.tensors[0].dtype == "BOOL");
  CHECK(header.tensors[1].name == "w");
  CHECK(header.tensors[1].dtype == "F16");
  CHECK(header.tensors[1].begin == 3);
  CHECK(why_refused(file).find("none of F32") != std::string::npos);
  const auto refused = [](const std::string& bad) {
    return message_of<CheckpointError>(
        [&] { parse_foreign_safetensors(bytes_of(bad), static_cast<std::int64_t>(bad.size())); });
  };
  CHECK(refused(file.substr(0, file.size() - 1)).find("the file has 10") != std::string::npos);
  const std::string wrong = R"({"w":{"dtype":"F16","shape":[2,3],"data_offsets":[0,8]}})";
  CHECK(refused(file_with(wrong, 8)).find("the shape needs 12 bytes") != std::string::npos);
}

TEST_CASE("a layout without gaps has the given tensors and no others") {
  const SafetensorsLayout layout = lay_out_safetensors(
      {{.name = "a", .dtype = DType::bf16, .shape = {3}}, {.name = "b", .dtype = DType::f32, .shape = {5}}},
      {{"format", "pt"}}, Gaps::none);
  const std::string text(reinterpret_cast<const char*>(layout.header.data()), layout.header.size());
  CHECK(text.find(kPaddingPrefix) == std::string::npos);
  CHECK(layout.tensors[1].begin == 6);
  CHECK(layout.file_bytes == static_cast<std::int64_t>(layout.header.size()) + 26);
  CHECK(parse_safetensors(layout.header, layout.file_bytes).tensors.size() == 2);
}
