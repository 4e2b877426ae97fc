#include "core/hf/companions.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "io/hash/hash.h"
#include "io/storage/local_storage.h"
#include "io/storage/storage.h"
#include "io/text/json.h"
#include "kernels/base/error.h"

namespace trainerd::core::hf {
namespace {

constexpr std::array kTokenizerFiles{"added_tokens.json", "chat_template.jinja",     "chat_template.json",
                                     "merges.txt",        "special_tokens_map.json", "tokenizer.json",
                                     "tokenizer.model",   "tokenizer_config.json",   "vocab.json"};
constexpr std::int64_t kLargestFile = std::int64_t{1} << 30;

std::vector<std::byte> content_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::unique_ptr<io::StoredFile> file =
      io::open_storage(path.substr(0, slash))->open(path.substr(slash + 1));
  if (file->bytes() > kLargestFile)
    throw base::checkpoint_error(path + ": has more than 1 GiB, and is no tokenizer's file");
  std::vector<std::byte> bytes(static_cast<std::size_t>(file->bytes()));
  file->read(0, bytes);
  return bytes;
}

/// Visits each member with its key.
template <class AnyOrigin, class Visit>
void each_text(AnyOrigin& origin, const Visit& visit) {
  visit("config", origin.config);
  visit("generation_config", origin.generation_config);
  visit("tokenizer", origin.tokenizer);
  visit("from", origin.from);
  visit("content", origin.content);
}

}  // namespace

std::string to_text(const Origin& origin) {
  if (origin == Origin{}) return "";
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  each_text(origin, [&](const char* key, const std::string& text) {
    if (!text.empty()) json[key] = text;
  });
  return io::to_text(json);
}

Origin parse_origin(const std::string& text, const std::string& path) {
  Origin origin;
  if (text.empty()) return origin;
  try {
    const nlohmann::json json = io::parse_json(text);
    each_text(origin, [&](const char* key, std::string& value) {
      if (json.is_object() && json.contains(key)) value = io::string_member(json, key);
    });
  } catch (const io::JsonError& e) {
    throw base::checkpoint_error(path + ": its record of where the weights came from: " + e.what());
  }
  return origin;
}

std::vector<std::int32_t> end_ids(const Origin& origin) {
  for (const std::string& text : {origin.generation_config, origin.config}) {
    if (text.empty()) continue;
    const nlohmann::json json = io::parse_json(text);
    const auto found = json.is_object() ? json.find("eos_token_id") : json.end();
    if (found == json.end() || found->is_null()) continue;
    std::vector<std::int32_t> ids;
    for (const nlohmann::json& id : found->is_array() ? *found : nlohmann::json::array({*found}))
      if (id.is_number_integer()) ids.push_back(id.get<std::int32_t>());
    return ids;
  }
  return {};
}

std::vector<std::string> tokenizer_files(const std::string& directory) {
  const std::vector<std::string> there = io::open_storage(directory)->list("");
  std::vector<std::string> names;
  for (const char* name : kTokenizerFiles)
    if (std::binary_search(there.begin(), there.end(), name)) names.emplace_back(name);
  return names;
}

bool may_be_tokenizer(const std::string& directory, const std::string& hash) {
  bool compared = false;
  for (const TokenizerFile& file : tokenizer_files_in(directory)) {
    if (file.name != "tokenizer.json" && file.name != "tokenizer.model") continue;
    if (io::xxh3_hex(content_of(file.path)) == hash) return true;
    compared = true;
  }
  return !compared;
}

std::vector<TokenizerFile> tokenizer_files_in(const std::string& directory) {
  std::vector<TokenizerFile> files;
  for (const std::string& name : tokenizer_files(directory)) files.push_back({name, directory + "/" + name});
  return files;
}

std::vector<TokenizerFile> tokenizer_files_with(const std::string& file) {
  const std::filesystem::path path = std::filesystem::absolute(file).lexically_normal();
  const std::vector<std::byte> bytes = content_of(path.string());
  const auto first = std::find_if(bytes.begin(), bytes.end(), [](std::byte byte) {
    return std::string_view(" \t\r\n").find(std::to_integer<char>(byte)) == std::string_view::npos;
  });
  const bool json = first != bytes.end() && *first == std::byte{'{'};
  std::vector<TokenizerFile> files{{json ? "tokenizer.json" : "tokenizer.model", path.string()}};
  for (TokenizerFile& beside : tokenizer_files_in(path.parent_path().string()))
    if (beside.name != "tokenizer.json" && beside.name != "tokenizer.model")
      files.push_back(std::move(beside));
  std::sort(files.begin(), files.end(),
            [](const TokenizerFile& a, const TokenizerFile& b) { return a.name < b.name; });
  return files;
}

std::string tokenizer_checksum(const std::vector<TokenizerFile>& files) {
  if (files.empty()) return "";
  io::Xxh3 hash;
  for (const TokenizerFile& file : files) {
    const std::vector<std::byte> bytes = content_of(file.path);
    const std::string head = file.name + " " + std::to_string(bytes.size()) + "\n";
    hash.update(std::as_bytes(std::span(head)));
    hash.update(bytes);
  }
  return hash.hex();
}

std::string tokenizer_checksum(const std::string& directory) {
  return tokenizer_checksum(tokenizer_files_in(directory));
}

void copy_tokenizer(const std::vector<TokenizerFile>& files, const std::string& to) {
  const std::unique_ptr<io::Storage> target = io::open_storage(to);
  target->make_folder("");
  for (const TokenizerFile& file : files) target->write(file.name, content_of(file.path));
  target->sync_folder("");
}

void replace_tokenizer(const std::vector<TokenizerFile>& files, const std::string& to) {
  const std::filesystem::path parent = std::filesystem::path(io::local_path(to)).parent_path();
  io::LocalStorage beside(parent.empty() ? "." : parent.string());
  const std::string name = std::filesystem::path(to).filename().string(), partial = name + ".partial";
  beside.remove(partial);
  copy_tokenizer(files, beside.path_of(partial));
  beside.remove(name);
  beside.rename(partial, name);
  beside.sync_folder("");
}

Origin tokenizer_origin(const std::vector<TokenizerFile>& files, std::optional<std::int32_t> bos,
                        std::optional<std::int32_t> eos) {
  Origin origin;
  origin.tokenizer = tokenizer_checksum(files);
  nlohmann::ordered_json ids = nlohmann::ordered_json::object();
  if (bos) ids["bos_token_id"] = *bos;
  if (eos) ids["eos_token_id"] = *eos;
  if (!ids.empty()) origin.generation_config = io::to_text(ids, 2) + "\n";
  return origin;
}

}  // namespace trainerd::core::hf
