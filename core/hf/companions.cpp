#include "core/hf/companions.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

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

std::vector<std::byte> content_of(const io::Storage& storage, const std::string& name) {
  const std::unique_ptr<io::StoredFile> file = storage.open(name);
  if (file->bytes() > kLargestFile)
    throw base::checkpoint_error(storage.path_of(name) + ": has more than 1 GiB, and is no tokenizer's file");
  std::vector<std::byte> bytes(static_cast<std::size_t>(file->bytes()));
  file->read(0, bytes);
  return bytes;
}

/// Of each member, the key and where it is.
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
  const std::unique_ptr<io::Storage> storage = io::open_storage(directory);
  bool compared = false;
  for (const std::string& name : tokenizer_files(directory)) {
    if (name != "tokenizer.json" && name != "tokenizer.model") continue;
    if (io::xxh3_hex(content_of(*storage, name)) == hash) return true;
    compared = true;
  }
  return !compared;
}

std::string tokenizer_checksum(const std::string& directory) {
  const std::vector<std::string> names = tokenizer_files(directory);
  if (names.empty()) return "";
  const std::unique_ptr<io::Storage> storage = io::open_storage(directory);
  io::Xxh3 hash;
  for (const std::string& name : names) {
    const std::vector<std::byte> bytes = content_of(*storage, name);
    const std::string head = name + " " + std::to_string(bytes.size()) + "\n";
    hash.update(std::as_bytes(std::span(head)));
    hash.update(bytes);
  }
  return hash.hex();
}

void copy_tokenizer(const std::string& from, const std::string& to) {
  const std::unique_ptr<io::Storage> source = io::open_storage(from), target = io::open_storage(to);
  const std::vector<std::string> names = tokenizer_files(from);
  target->make_folder("");
  for (const std::string& name : names) target->write(name, content_of(*source, name));
  target->sync_folder("");
}

void replace_tokenizer(const std::string& from, const std::string& to) {
  const std::filesystem::path parent = std::filesystem::path(io::local_path(to)).parent_path();
  io::LocalStorage beside(parent.empty() ? "." : parent.string());
  const std::string name = std::filesystem::path(to).filename().string(), partial = name + ".partial";
  beside.remove(partial);
  copy_tokenizer(from, beside.path_of(partial));
  beside.remove(name);
  beside.rename(partial, name);
  beside.sync_folder("");
}

}  // namespace trainerd::core::hf
