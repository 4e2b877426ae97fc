// Requests to an object store: signatures of AWS's own examples, settings and replies. Cases that need a
// store are run by tests/system/s3_test.py, whose store verifies signatures with its own code.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "io/files/block_cache.h"
#include "io/s3/client.h"
#include "io/s3/credentials.h"
#include "io/s3/errors.h"
#include "io/s3/sign.h"
#include "io/s3/xml.h"
#include "kernels/base/error.h"
#include "tests/io/temp_dir.h"

namespace base = trainerd::base;
using namespace trainerd::io;
using trainerd::test::message_of;
using trainerd::test::read_file;
using trainerd::test::TempDir;
using trainerd::test::write_file;

namespace {

const std::string kEmptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string signature_of(const RequestToSign& request, const SigningKey& key) {
  const std::string value = authorization(request, key);
  return value.substr(value.rfind('=') + 1);
}

// From AWS's documentation "Signature Version 4 test suite".
std::string suite_signature(RequestToSign request) {
  request.headers["host"] = "example.amazonaws.com";
  request.headers["x-amz-date"] = "20150830T123600Z";
  if (request.payload_hash.empty()) request.payload_hash = kEmptyHash;
  request.region = "us-east-1";
  request.service = "service";
  return signature_of(request, {"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"});
}

// From Amazon S3's reference, "Signature Calculations for the Authorization Header".
std::string example_signature(RequestToSign request) {
  request.headers["host"] = "examplebucket.s3.amazonaws.com";
  request.headers["x-amz-date"] = "20130524T000000Z";
  if (request.payload_hash.empty()) request.payload_hash = kEmptyHash;
  request.headers["x-amz-content-sha256"] = request.payload_hash;
  request.region = "us-east-1";
  return signature_of(request, {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"});
}

Variable variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

}  // namespace

TEST_CASE("signatures are those of AWS's test suite", "[s3]") {
  CHECK(suite_signature({.method = "GET", .path = "/"}) ==
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  CHECK(suite_signature({.method = "POST", .path = "/"}) ==
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
  // Sorted by name, then by value.
  CHECK(suite_signature(
            {.method = "GET", .path = "/", .query = {{"Param2", "value2"}, {"Param1", "value1"}}}) ==
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
  CHECK(suite_signature({.method = "GET", .path = "/%E1%88%B4"}) ==
        "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85");
}

TEST_CASE("signatures are those of the examples of Amazon S3's reference", "[s3]") {
  CHECK(example_signature({.method = "GET", .path = "/test.txt", .headers = {{"range", "bytes=0-9"}}}) ==
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  const std::string body = "Welcome to Amazon S3.";
  CHECK(example_signature({.method = "PUT",
                           .path = "/" + encoded_path("test$file.text"),
                           .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                       {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                           .payload_hash = sha256_hex(std::as_bytes(std::span(body)))}) ==
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  CHECK(example_signature({.method = "GET", .path = "/", .query = {{"lifecycle", ""}}}) ==
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  CHECK(example_signature({.method = "GET", .path = "/", .query = {{"prefix", "J"}, {"max-keys", "2"}}}) ==
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST_CASE("paths at s3:// have a bucket and a key", "[s3]") {
  CHECK(parse_s3("s3://a-b.c/x/y z").bucket == "a-b.c");
  CHECK(parse_s3("s3://a-b.c/x/y z").key == "x/y z");
  CHECK(parse_s3("s3://bucket").key.empty());
  for (const char* wrong : {"s3://", "s3:///x", "gs://a/b", "/a", "s3://a b/c"})
    CHECK(message_of<base::SpecError>([&] { parse_s3(wrong); }).find(wrong) != std::string::npos);
}

TEST_CASE("replies of a store are read, whatever they hold", "[s3]") {
  const std::string list =
      "<L><Contents><Key>a%20b%2Bc</Key><Size>3</Size></Contents><Contents><Key>d+&amp;&#38;&lt;</Key></"
      "Contents>"
      "<ContentsMore/><Empty/></L>";
  REQUIRE(xml_elements(list, "Contents").size() == 2);
  CHECK(url_decoded(*xml_text(xml_elements(list, "Contents")[0], "Key")) == "a b+c");
  CHECK(url_decoded(*xml_text(xml_elements(list, "Contents")[1], "Key")) == "d &&<");
  CHECK(xml_text(list, "Empty") == "");
  CHECK_FALSE(xml_text(list, "Absent"));
  for (const char* broken : {"<Contents>", "<Contents", "<Contents></Content>", "<", "&#;", "<Contents/"}) {
    CHECK(xml_elements(broken, "Contents").empty());
    CHECK_NOTHROW(url_decoded(broken));
  }
  CHECK(url_decoded("%zz%4") == "%zz%4");
  CHECK(is_worth_retry({.status = 503, .body = {}}));
  CHECK(is_worth_retry({.status = 200, .body = "<Error><Code>InternalError</Code></Error>"}));
  CHECK_FALSE(is_worth_retry({.status = 403, .body = {}}));
  CHECK(may_be_expired({.status = 400, .body = "<Error><Code>ExpiredToken</Code></Error>"}, false));
  CHECK_FALSE(may_be_expired({.status = 403, .body = "<Error><Code>AccessDenied</Code></Error>"}, false));
}

TEST_CASE("settings are found where AWS's tools find them", "[s3]") {
  const TempDir home;
  write_file(home / ".aws/credentials", "[default]\naws_access_key_id=A\naws_secret_access_key = B=C\n");
  write_file(home / ".aws/config",
             "# of the tools\n[default]\nregion = r1\n[profile p q]\nregion=r2\nendpoint_url = "
             "https://store:443/\ns3 =\n    addressing_style = virtual\nretry_mode = x\n");
  const S3Settings plain = s3_settings(variables({{"HOME", home.path()}}));
  CHECK(plain.region == "r1");
  CHECK(plain.endpoint.empty());
  CHECK(plain.credentials.instance_url == "http://169.254.169.254");
  CHECK(Credentials(plain.credentials).get() == AwsCredentials{"A", "B=C"});
  CHECK_THROWS_AS(s3_settings(variables({{"HOME", home.path()}, {"AWS_PROFILE", "r"}})),
                  trainerd::base::SpecError);
  const S3Settings profile = s3_settings(variables({{"HOME", home.path()}, {"AWS_PROFILE", "p q"}}));
  CHECK(profile.region == "r2");
  CHECK(profile.endpoint == "https://store:443");
  CHECK(profile.addressing == S3Addressing::virtual_host);
  const S3Settings given = s3_settings(variables({{"HOME", home.path()},
                                                  {"AWS_REGION", "r3"},
                                                  {"AWS_ENDPOINT_URL", "http://all"},
                                                  {"AWS_ENDPOINT_URL_S3", "http://one"},
                                                  {"AWS_ACCESS_KEY_ID", "X"},
                                                  {"AWS_SECRET_ACCESS_KEY", "Y"},
                                                  {"AWS_SESSION_TOKEN", "Z"},
                                                  {"AWS_EC2_METADATA_DISABLED", "true"},
                                                  {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x"}}));
  CHECK(given.region == "r3");
  CHECK(given.endpoint == "http://one");
  CHECK(given.credentials.environment == AwsCredentials{"X", "Y", "Z"});
  CHECK(given.credentials.instance_url.empty());
  CHECK(given.credentials.container_url == "http://169.254.170.2/v2/x");
  CHECK_THROWS_AS(s3_settings(variables({{"AWS_ACCESS_KEY_ID", "X"}})), base::SpecError);
  CHECK_THROWS_AS(s3_settings(variables({{"AWS_ENDPOINT_URL", "store:9000"}})), base::SpecError);
  CHECK(parse_utc("1970-01-02T00:00:01Z").time_since_epoch() == std::chrono::seconds(86401));
  CHECK_THROWS_AS(parse_utc("tomorrow"), base::SpecError);
}

TEST_CASE("a cache of blocks keeps its bound, forgets what was read longest ago, and gives no damaged byte",
          "[s3]") {
  const TempDir dir;
  const std::string block(1000, 'b');
  const auto bytes = std::as_bytes(std::span(block));
  std::string back(1000, '\0');
  const auto out = std::as_writable_bytes(std::span(back));
  const auto began = std::filesystem::file_time_type::clock::now() - std::chrono::hours(2);
  const std::string id(32, 'a');
  // Foreign files in the same directory, older than any block.
  const std::vector<std::string> others{dir / "cache/corpus/1", dir / "cache/corpus/.env",
                                        dir / ("cache/" + id + "/notes")};
  for (const std::string& file : others) {
    write_file(file, std::string(5000, 'x'));
    std::filesystem::last_write_time(file, began - std::chrono::hours(2));
  }
  BlockCache cache(dir / "cache", 10'500), other(dir / "cache", 10'500);
  const auto kept = [&] {
    int count = 0;
    for (int i = 0; i < 40; ++i)
      count += std::filesystem::exists(dir / ("cache/" + id + "/" + std::to_string(i))) ? 1 : 0;
    return count;
  };
  CHECK_FALSE(cache.load(id, 0, out));
  for (int i = 0; i < 40; ++i) {
    (i % 2 == 0 ? cache : other).store(id, i, bytes);  // like two processes
    CHECK(kept() <= 10);
    CHECK(cache.load(id, i, out));
    // The file system's clock may not advance in between.
    std::filesystem::last_write_time(dir / ("cache/" + id + "/" + std::to_string(i)),
                                     began + std::chrono::seconds(i));
  }
  CHECK(back == block);
  for (const std::string& file : others) CHECK(std::filesystem::exists(file));
  CHECK(kept() >= 8);
  CHECK_FALSE(cache.load(id, 0, out));
  const std::string path = dir / ("cache/" + id + "/39");
  std::string damaged = read_file(path);
  damaged[500] ^= 1;
  write_file(path, damaged);
  CHECK_FALSE(cache.load(id, 39, out));
  CHECK_FALSE(std::filesystem::exists(path));
  write_file(dir / ("cache/" + id + "/38"), "short");
  CHECK_FALSE(other.load(id, 38, out));
  CHECK(cache.failures() == 1);
  CHECK(other.failures() == 1);
  other.store(id, 38, bytes);
  CHECK(cache.load(id, 38, out));
  const std::string large(20'000, 'x');  // larger than the cache
  cache.store(id, 41, std::as_bytes(std::span(large)));
  CHECK(cache.failures() == 2);
  write_file(dir / "file", "");
  CHECK_THAT(message_of<base::SpecError>([&] { BlockCache(dir / "file", 1); }),
             Catch::Contains("is no directory"));
  std::filesystem::permissions(dir / "cache", std::filesystem::perms::all);
  CHECK_THAT(message_of<base::SpecError>([&] { BlockCache(dir / "cache", 1); }),
             Catch::Contains("can be written by other users"));
}

// Needs a store at AWS_ENDPOINT_URL with the bucket "written".
TEST_CASE("objects are written, listed, read and removed", "[.s3-store]") {
  S3Client client(s3_settings([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }));
  const std::vector<std::string> keys{"a/ b+c%25&=?#.bin", "a/./../dots", "a/\xc3\xbc", "a/*'()!$@:", "b"};
  for (const std::string& key : keys) client.put({"written", key}, std::as_bytes(std::span(key)));
  std::vector<std::string> listed;
  for (const S3Object& object : client.list("written", "a/")) listed.push_back(object.key);
  std::vector<std::string> expected(keys.begin(), keys.end() - 1);
  std::sort(expected.begin(), expected.end());
  CHECK(listed == expected);
  for (const std::string& key : keys) {
    const auto found = client.head({"written", key});
    REQUIRE(found);
    CHECK(found->bytes == static_cast<std::int64_t>(key.size()));
    std::string back(key.size() - 1, '\0');
    if (!back.empty()) client.get({"written", key}, found->etag, 1, std::as_writable_bytes(std::span(back)));
    CHECK(back == key.substr(1));
  }
  const S3Path large{"written", "large"};
  std::string part(5 << 20, 'p');
  for (std::size_t i = 0; i < part.size(); i += 97) part[i] = static_cast<char>('a' + i % 26);
  const std::string upload = client.begin_upload(large);
  std::vector<std::string> etags;
  for (int i = 1; i <= 2; ++i)
    etags.push_back(client.upload_part(large, upload, i,
                                       std::as_bytes(std::span(part)).first(i == 1 ? part.size() : 1000)));
  CHECK_FALSE(client.head(large));
  client.complete_upload(large, upload, etags);
  const auto whole = client.head(large);
  REQUIRE(whole);
  CHECK(whole->bytes == static_cast<std::int64_t>(part.size()) + 1000);
  std::string seam(2000, '\0');
  client.get(large, whole->etag, static_cast<std::int64_t>(part.size()) - 1000,
             std::as_writable_bytes(std::span(seam)));
  CHECK(seam == part.substr(part.size() - 1000) + part.substr(0, 1000));
  const std::string given_up = client.begin_upload(large);
  client.abort_upload(large, given_up);
  client.abort_upload(large, given_up);
  client.put(large, std::as_bytes(std::span(part)).first(10));
  CHECK_THROWS_WITH(client.get(large, whole->etag, 0, std::as_writable_bytes(std::span(seam)).first(10)),
                    Catch::Contains("was replaced"));
  for (const std::string& key : keys) client.remove({"written", key});
  client.remove(large);
  client.remove(large);
  CHECK(client.list("written", "").empty());
  CHECK(client.counters().requests > client.counters().retries);
}
