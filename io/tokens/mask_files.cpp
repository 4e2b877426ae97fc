#include "io/tokens/mask_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "io/hash/hash.h"
#include "io/tokens/dataset_info.h"
#include "io/tokens/samples.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

void set_mask(SourceFile& file, const std::string& path) {
  const DataFile opened = file.from.open(path);
  if (!opened)
    throw base::data_error(path + ": it is not there, and the dataset.json beside " + file.path +
                           " says that there are loss masks: copy it too, or prepare the data again");
  const std::int64_t bytes = opened.bytes();
  if (bytes != file.layout.tokens)
    throw base::data_error(fmt::format(
        "{}: a loss mask has a byte for each token; it has {} bytes, and {} has {} tokens: the mask "
        "is of other data, or damaged",
        path, bytes, file.path, file.layout.tokens));
  file.mask = path;
}

// Returns the masks of the files that have one, as files to read.
std::vector<SourceFile> mask_files(std::span<const SourceFile> files) {
  std::vector<SourceFile> masks;
  for (const SourceFile& file : files)
    if (!file.mask.empty())
      masks.push_back(
          {.path = file.mask, .bytes = file.layout.tokens, .layout = {}, .mask = {}, .from = file.from});
  return masks;
}

std::vector<std::int64_t> sizes_of(std::span<const SourceFile> files) {
  std::vector<std::int64_t> sizes;
  for (const SourceFile& file : files) sizes.push_back(file.bytes);
  return sizes;
}

}  // namespace

std::string mask_path_of(const std::string& data_path) {
  constexpr std::string_view kBin = ".bin";
  return (data_path.ends_with(kBin) ? data_path.substr(0, data_path.size() - kBin.size()) : data_path) +
         ".mask";
}

void attach_masks(std::vector<SourceFile>& files, const std::vector<std::string>& masks, DataFormat format) {
  if (!masks.empty()) {
    const std::vector<ListedFile> listed =
        list_files(masks, files.empty() ? DataFiles() : files.front().from);
    if (listed.size() != files.size())
      throw base::data_error(fmt::format(
          "{}{}: {} loss masks for {} files of tokens: name one for each, in the order of the files",
          masks.front(), masks.size() > 1 ? ", ..." : "", listed.size(), files.size()));
    for (std::size_t i = 0; i < files.size(); ++i) set_mask(files[i], listed[i].path);
    return;
  }
  if (format != DataFormat::tokens) return;
  std::map<std::string, std::optional<bool>> masked;  // by folder
  for (SourceFile& file : files) {
    const std::string folder = std::filesystem::path(file.path).parent_path().string();
    const auto [at, is_new] = masked.try_emplace(folder, std::nullopt);
    if (is_new) at->second = dataset_has_masks(folder, file.from);
    const std::string path = mask_path_of(file.path);
    if (!at->second && file.from.is_file(path))
      throw base::data_error(path +
                             ": a loss mask lies beside the tokens, and no dataset.json says whether it "
                             "counts: bring the dataset.json of `trainerd data prepare` back, name the mask "
                             "by data.mask, or move it away");
    if (at->second.value_or(false)) set_mask(file, path);
  }
}

void find_mask(SourceFile& file) {
  const std::string path = mask_path_of(file.path);
  const bool declared =
      dataset_has_masks(std::filesystem::path(file.path).parent_path().string(), file.from).value_or(false);
  if (declared || file.from.is_file(path)) set_mask(file, path);
}

bool has_masks(std::span<const SourceFile> files) {
  return std::any_of(files.begin(), files.end(), [](const SourceFile& file) { return !file.mask.empty(); });
}

MaskScan scan_mask(std::int64_t offset, std::span<const std::byte> bytes) {
  MaskScan scan{.tokens = static_cast<std::int64_t>(bytes.size())};
  std::uint8_t all = 0;
  for (const std::byte byte : bytes) {
    all |= static_cast<std::uint8_t>(byte);
    scan.counted += static_cast<std::uint8_t>(byte);
  }
  if (all <= 1) return scan;
  scan.counted = std::count(bytes.begin(), bytes.end(), std::byte{1});
  const auto wrong =
      std::find_if(bytes.begin(), bytes.end(), [](std::byte byte) { return byte > std::byte{1}; });
  scan.first_wrong = offset + (wrong - bytes.begin());
  scan.wrong = static_cast<std::uint8_t>(*wrong);
  return scan;
}

void add(MaskScan& sum, const MaskScan& later) {
  sum.tokens += later.tokens;
  sum.counted += later.counted;
  if (sum.first_wrong < 0) sum.first_wrong = later.first_wrong, sum.wrong = later.wrong;
}

std::string mask_problem(const std::string& path, const MaskScan& scan) {
  if (scan.first_wrong < 0) return "";
  return fmt::format(
      "{}: byte {} at position {} is neither 1 (the token counts in the loss) nor 0 (it does not): this is "
      "no "
      "loss mask, or it is damaged",
      path, scan.wrong, scan.first_wrong);
}

std::string share_text(const MaskScan& scan) {
  const double share =
      scan.tokens == 0 ? 0 : static_cast<double>(scan.counted) / static_cast<double>(scan.tokens);
  return fmt::format("{:.3g}% of tokens count", 100 * share);
}

std::vector<MaskScan> scan_masks(std::span<const SourceFile> files, MaskReading reading, int threads) {
  const std::vector<SourceFile> masks = mask_files(files);
  const std::vector<std::int64_t> sizes = sizes_of(masks);
  const auto blocks = reading == MaskReading::whole ? all_blocks(sizes) : sample_blocks(sizes);
  std::vector<MaskScan> of_block(blocks.size()), of_mask(masks.size()), of_file(files.size());
  read_blocks(masks, blocks, threads, [&](std::size_t i, std::span<const std::byte> bytes) {
    of_block[i] = scan_mask(blocks[i].offset, bytes);
  });
  for (std::size_t i = 0; i < blocks.size(); ++i) add(of_mask[blocks[i].file], of_block[i]);
  for (std::size_t i = 0, mask = 0; i < files.size(); ++i)
    if (!files[i].mask.empty()) of_file[i] = of_mask[mask++];
  return of_file;
}

std::string check_and_hash_masks(std::span<const SourceFile> files, int threads) {
  const std::vector<SourceFile> masks = mask_files(files);
  const std::vector<std::int64_t> sizes = sizes_of(masks);
  const std::vector<DataBlock> blocks = sample_blocks(sizes);
  std::vector<MaskScan> scans(blocks.size());
  std::vector<std::string> hashes(blocks.size());
  read_blocks(masks, blocks, threads, [&](std::size_t i, std::span<const std::byte> bytes) {
    scans[i] = scan_mask(blocks[i].offset, bytes);
    hashes[i] = xxh3_hex(bytes);
  });
  Xxh3 hash;
  const auto update = [&hash](const std::string& text) { hash.update(std::as_bytes(std::span(text))); };
  // The hash includes which files have a mask.
  for (const SourceFile& file : files) update(file.mask.empty() ? "none\n" : "mask\n");
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (const std::string problem = mask_problem(masks[blocks[i].file].path, scans[i]); !problem.empty())
      throw base::data_error(problem);
    update(hashes[i]);
  }
  return hash.hex();
}

}  // namespace trainerd::io
