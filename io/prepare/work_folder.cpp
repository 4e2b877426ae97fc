#include "io/prepare/work_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <set>
#include <utility>

#include "io/text/json.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDatasetFile = "dataset.json";
// Records of finished parts lie in a separate folder, which is removed at the end.
constexpr const char* kRecords = "records";

std::optional<std::string> file_text(const std::string& path) {
  const base::UniqueFd fd = base::open_read(path);
  if (!fd) return std::nullopt;
  const std::int64_t bytes = base::file_bytes(fd.get());
  std::string text(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 0)), '\0');
  if (base::read_at(fd.get(), std::as_writable_bytes(std::span(text)), 0) != bytes) return std::nullopt;
  return text;
}

std::int64_t size_of(const std::string& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  return error ? -1 : static_cast<std::int64_t>(bytes);
}

void write_text(const std::string& path, const std::string& text) {
  if (const int error = base::write_file_atomically(path, std::as_bytes(std::span(text))); error != 0)
    throw base::data_error(path + ": cannot be written: " + base::errno_text(error));
}

// Returns none if the record is missing, invalid or has another key.
std::optional<PartRecord> read_record(const std::string& path, const std::string& key) {
  const auto text = file_text(path);
  if (!text) return std::nullopt;
  try {
    const nlohmann::json j = parse_json(*text);
    if (string_member(j, "key") != key) return std::nullopt;
    return PartRecord{{.documents = int_member(j, "documents"),
                       .tokens = int_member(j, "tokens"),
                       .bin_bytes = int_member(j, "bin_bytes"),
                       .idx_bytes = int_member(j, "idx_bytes"),
                       .learned = j.contains("learned") ? int_member(j, "learned") : 0,
                       .bin_hash = string_member(j, "bin_xxh3"),
                       .idx_hash = string_member(j, "idx_xxh3"),
                       .mask_hash = j.contains("mask_xxh3") ? string_member(j, "mask_xxh3") : ""},
                      int_member(j, "empty_documents"),
                      j.contains("long_pairs") ? int_member(j, "long_pairs") : 0};
  } catch (const JsonError&) {
    return std::nullopt;
  }
}

std::string parent_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

}  // namespace

std::optional<MadeDataset> made_dataset(const std::string& directory) {
  const std::string path = directory + "/" + kDatasetFile;
  const auto text = file_text(path);
  if (!text) return std::nullopt;
  MadeDataset made;
  try {
    const nlohmann::json j = parse_json(*text);
    made.plan = string_member(j, "plan");
    const nlohmann::json& files = member(j, "files");
    if (!files.is_array()) throw JsonError("\"files\" is not a list");
    for (const nlohmann::json& file : files) {
      const std::string stem = directory + "/" + string_member(file, "name");
      const std::int64_t tokens = int_member(file, "tokens"), bin = size_of(stem + ".bin");
      std::vector<std::pair<std::string, bool>> wanted{
          {stem + ".bin", bin >= 0 && tokens > 0 && bin % tokens == 0},
          {stem + ".idx", size_of(stem + ".idx") == index_bytes(int_member(file, "documents"))}};
      if (file.contains("mask_xxh3")) wanted.emplace_back(stem + ".mask", size_of(stem + ".mask") == tokens);
      for (const auto& [name, right] : wanted)
        if (!right && made.broken.empty()) made.broken = name;
    }
  } catch (const JsonError& error) {
    throw base::data_error(path + ": " + error.what() + ": remove this directory, or give another --out");
  }
  return made;
}

WorkFolder::WorkFolder(const std::string& out) : out_(out), path_(out + ".partial") {
  std::error_code error;
  fs::create_directories(fs::path(path_) / kRecords, error);
  if (error) throw base::data_error(path_ + ": cannot be made: " + error.message());
  lock_ = base::UniqueFd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_) throw base::data_error(path_ + ": cannot be opened: " + base::errno_text(errno));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0)
    throw base::data_error(
        path_ + ": another `trainerd data prepare` works in it: wait for it, or give another --out");
}

WorkFolder::~WorkFolder() {
  if (::rmdir((path_ + "/" + kRecords).c_str()) == 0) ::rmdir(path_.c_str());
}

std::string WorkFolder::name(std::size_t part) { return fmt::format("tokens-{:05}", part); }
std::string WorkFolder::stem(std::size_t part) const { return path_ + "/" + name(part); }
std::string WorkFolder::record_path(std::size_t part) const {
  return path_ + "/" + kRecords + "/" + name(part) + ".json";
}

std::vector<std::optional<PartRecord>> WorkFolder::keep(const std::vector<Part>& parts) const {
  std::vector<std::optional<PartRecord>> records(parts.size());
  std::set<std::string> kept;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto record = read_record(record_path(i), parts[i].key);
    if (!record || size_of(stem(i) + ".bin") != record->totals.bin_bytes ||
        size_of(stem(i) + ".idx") != record->totals.idx_bytes)
      continue;
    const bool masked = !record->totals.mask_hash.empty();
    if (masked && size_of(stem(i) + ".mask") != record->totals.tokens) continue;
    records[i] = record;
    kept.insert({stem(i) + ".bin", stem(i) + ".idx", record_path(i)});
    if (masked) kept.insert(stem(i) + ".mask");
  }
  for (const std::string& folder : {path_ + "/" + kRecords, path_}) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (kept.contains(entry.path().string())) continue;
      const std::string file = entry.path().filename().string();
      if (entry.is_directory() && folder == path_ && file == kRecords) continue;
      if (entry.is_directory() || !(file.starts_with("tokens-") || file.starts_with("dataset.json")))
        throw base::data_error(
            entry.path().string() +
            ": is not of an interrupted `data prepare`: move it away, or give another --out");
      std::error_code error;
      fs::remove(entry.path(), error);
      if (error) throw base::data_error(entry.path().string() + ": cannot be removed: " + error.message());
    }
  }
  return records;
}

void WorkFolder::record(std::size_t part, const std::string& key, const PartRecord& record) const {
  const IndexedTotals& t = record.totals;
  // The names of the part's files must be durable before its record is.
  if (const int error = base::sync_directory(path_); error != 0)
    throw base::data_error(path_ + ": cannot be written: " + base::errno_text(error));
  nlohmann::ordered_json j{{"key", key},
                           {"documents", t.documents},
                           {"tokens", t.tokens},
                           {"empty_documents", record.empty_documents},
                           {"bin_bytes", t.bin_bytes},
                           {"idx_bytes", t.idx_bytes},
                           {"learned", t.learned},
                           {"bin_xxh3", t.bin_hash},
                           {"idx_xxh3", t.idx_hash},
                           {"mask_xxh3", t.mask_hash}};
  if (record.long_pairs > 0) j["long_pairs"] = record.long_pairs;
  write_text(record_path(part), to_text(j, 1) + "\n");
}

void WorkFolder::finish(const std::string& dataset_json) const {
  write_text(path_ + "/" + kDatasetFile, dataset_json);
  publish();
}

bool WorkFolder::finish_earlier(const std::string& plan) const {
  const auto made = made_dataset(path_);
  if (!made || made->plan != plan || !made->broken.empty()) return false;
  publish();
  return true;
}

void WorkFolder::publish() const {
  std::error_code error;
  fs::remove_all(path_ + "/" + kRecords, error);
  if (error) throw base::data_error(path_ + "/" + kRecords + ": cannot be removed: " + error.message());
  if (std::rename(path_.c_str(), out_.c_str()) != 0)
    throw base::data_error(out_ + ": " + path_ + ", which is complete, cannot be renamed to it: " +
                           base::errno_text(errno) + "; it must be no mount point and hold nothing");
  base::sync_directory(parent_of(out_));
}

}  // namespace trainerd::io
