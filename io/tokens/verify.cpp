#include "io/tokens/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include "io/hash/hash.h"
#include "io/text/text.h"
#include "io/tokens/dataset_info.h"
#include "io/tokens/mask_files.h"
#include "io/tokens/samples.h"
#include "io/tokens/source_files.h"
#include "kernels/base/error.h"
#include "kernels/base/thread_pool.h"

namespace trainerd::io {
namespace {

constexpr std::int64_t kVerifyBlockBytes = 4 << 20;
constexpr std::size_t kHexDigits = 32;

/// A file that is read whole.
struct VerifiedFile {
  std::string path, checksum, mask_checksum;
  SourceFile file;
  IdScan ids;
  MaskScan mask;
  std::int64_t documents = 0, empty_documents = 0;
  std::vector<std::string> problems;
};

// Returns the checksum in PATH.xxh128, as written by `xxhsum -H2 PATH >PATH.xxh128`; none if there is no such
// file.
std::optional<std::string> noted_checksum(const std::string& path, const DataFiles& from) {
  const std::string note = path + ".xxh128";
  const DataFile file = from.open(note);
  if (!file) return std::nullopt;
  std::string text(kHexDigits, '\0');
  const std::int64_t got = file.read(0, std::as_writable_bytes(std::span(text.data(), text.size())));
  text.resize(static_cast<std::size_t>(got));
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (text.size() != kHexDigits || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw base::data_error(note + ": it does not begin with the 32 hex digits that xxhsum -H2 prints");
  return text;
}

// Reads a file in order and returns its checksum.
template <class Visit>
std::string read_whole(const std::string& path, const DataFiles& from, std::int64_t size,
                       const Visit& visit) {
  const DataFile file = from.open(path);
  if (!file) throw base::data_error(path + ": cannot be opened: " + base::errno_text(ENOENT));
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(size, kVerifyBlockBytes)));
  Xxh3 hash;
  for (std::int64_t at = 0; at < size;) {
    const std::span<std::byte> bytes =
        std::span(block).first(static_cast<std::size_t>(std::min(kVerifyBlockBytes, size - at)));
    const std::int64_t got = file.read_once(at, bytes);
    if (std::cmp_less(got, bytes.size())) throw base::data_error(path + ": became shorter while it was read");
    hash.update(bytes);
    visit(at, std::span<const std::byte>(bytes));
    at += got;
  }
  return hash.hex();
}

void check_noted(const std::string& path, const DataFiles& from, const std::string& checksum) {
  const auto noted = noted_checksum(path, from);
  if (noted && *noted != checksum)
    throw base::data_error(path + ": its checksum is " + checksum + ", and " + path + ".xxh128 says " +
                           *noted +
                           ": the file was damaged or changed; copy it again, or write its checksum anew");
  const auto prepared = dataset_checksum(path, from);
  if (prepared && *prepared != checksum)
    throw base::data_error(
        path + ": its checksum is " + checksum + ", and dataset.json says " + *prepared +
        ": the file was damaged or changed since it was prepared; copy it again, or prepare "
        "the data anew");
}

// Checks the mask of a token file, if it has one.
void verify_mask(VerifiedFile& verified) {
  if (verified.file.layout.kind == TokenLayout::Kind::text) return;
  find_mask(verified.file);
  const std::string& path = verified.file.mask;
  if (path.empty()) return;
  const DataFiles& from = verified.file.from;
  verified.mask_checksum = read_whole(
      path, from, verified.file.layout.tokens,
      [&](std::int64_t at, std::span<const std::byte> bytes) { add(verified.mask, scan_mask(at, bytes)); });
  if (const std::string problem = mask_problem(path, verified.mask); !problem.empty())
    throw base::data_error(problem);
  check_noted(path, from, verified.mask_checksum);
}

void verify_file(VerifiedFile& verified, const InspectOptions& options) {
  const auto attempt = [&verified](const auto& check) {
    try {
      check();
    } catch (const base::DataError& error) {
      verified.problems.emplace_back(error.what());
    }
  };
  attempt([&] {
    DataOptions data;
    data.format = format_by_head(verified.path, head_of_file(verified.path, options.files), options);
    data.dtype = options.dtype;
    verified.file = open_source_file(verified.path, data, options.vocab, options.files);
  });
  // Without a valid layout there are no ids to check, and a checksum is of no use.
  if (!verified.problems.empty()) return;
  attempt([&] {
    const SourceFile& file = verified.file;
    verified.checksum =
        read_whole(file.path, file.from, file.bytes, [&](std::int64_t at, std::span<const std::byte> bytes) {
          if (file.layout.tokens > 0) add(verified.ids, scan_ids(file, at, bytes, options.vocab));
        });
  });
  if (!verified.problems.empty()) return;
  if (const std::string problem = ids_problem(verified.file, verified.ids, options.vocab); !problem.empty())
    verified.problems.push_back(problem +
                                (verified.ids.outside > 1
                                     ? fmt::format(" ({} such ids in all)", with_commas(verified.ids.outside))
                                     : ""));
  if (verified.file.layout.index)
    attempt([&] {
      each_document(*verified.file.layout.index, [&verified](const Document& document) {
        ++verified.documents;
        verified.empty_documents += document.tokens == 0 ? 1 : 0;
      });
    });
  attempt([&] { check_noted(verified.path, options.files, verified.checksum); });
  if (verified.file.layout.index)
    attempt([&] {
      const std::string& index = verified.file.layout.index->path;
      const DataFiles& from = options.files;
      if (!dataset_checksum(index, from)) return;
      const std::int64_t size = from.open(index).bytes();
      check_noted(index, from,
                  read_whole(index, from, size, [](std::int64_t, std::span<const std::byte>) {}));
    });
  attempt([&] { verify_mask(verified); });
}

std::string verification_text(std::span<const VerifiedFile> files) {
  std::int64_t tokens = 0, bytes = 0, documents = 0, empty = 0;
  std::uint32_t largest = 0;
  bool indexed = false;
  MaskScan masks;
  std::string checksums;
  for (const VerifiedFile& f : files) {
    tokens += f.file.layout.tokens;
    bytes += f.file.bytes;
    documents += f.documents;
    empty += f.empty_documents;
    indexed |= f.file.layout.index.has_value();
    largest = std::max(largest, f.ids.largest);
    if (!f.checksum.empty()) checksums += fmt::format("    {}  {}\n", f.checksum, f.path);
    if (!f.mask_checksum.empty()) checksums += fmt::format("    {}  {}\n", f.mask_checksum, f.file.mask);
    add(masks, f.mask);
  }
  std::string out;
  const auto line = [&out](const char* name, const std::string& value) {
    out += fmt::format("  {:<15}{}\n", name, value);
  };
  line("files", with_commas(static_cast<std::int64_t>(files.size())));
  line("tokens", with_commas(tokens));
  if (indexed)
    line("documents",
         with_commas(documents) + (empty == 0 ? "" : fmt::format(" ({} empty)", with_commas(empty))));
  if (tokens > 0)
    line("largest id", fmt::format("{} (vocab of at least {})", largest, std::uint64_t{largest} + 1));
  if (masks.tokens > 0) line("loss mask", share_text(masks));
  line("size", fmt::format("{} ({} bytes)", short_bytes(bytes), with_commas(bytes)));
  if (!checksums.empty()) out += "  checksums (XXH128, as xxhsum -H2 prints it)\n" + checksums;
  return out;
}

}  // namespace

Verification verify_data(const std::vector<std::string>& paths, const InspectOptions& options) {
  base::check(options.format != DataFormat::synthetic, "synthetic data has no files to look at");
  std::vector<std::string> named = paths;
  for (std::string& path : named) path = megatron_data_path(path, options.files);
  std::vector<VerifiedFile> files;
  // A checksum file lies beside the file that it describes and is not data.
  for (const ListedFile& listed :
       list_data(named, options.format.value_or(DataFormat::tokens), options.files))
    if (listed.named || !listed.path.ends_with(".xxh128"))
      files.push_back({.path = listed.path,
                       .checksum = {},
                       .mask_checksum = {},
                       .file = {},
                       .ids = {},
                       .mask = {},
                       .problems = {}});
  if (files.empty()) throw base::data_error(paths.front() + ": there are no files");
  base::ThreadPool pool(static_cast<int>(
      std::min<std::size_t>(static_cast<std::size_t>(std::max(1, options.threads)), files.size())));
  pool.run(static_cast<std::int64_t>(files.size()),
           [&](std::int64_t i, int) { verify_file(files[static_cast<std::size_t>(i)], options); });
  Verification verification;
  for (const VerifiedFile& file : files)
    verification.problems.insert(verification.problems.end(), file.problems.begin(), file.problems.end());
  verification.text = verification_text(files);
  return verification;
}

}  // namespace trainerd::io
