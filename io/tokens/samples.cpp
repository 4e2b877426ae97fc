#include "io/tokens/samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <utility>

#include "io/hash/hash.h"
#include "io/text/text.h"
#include "kernels/base/error.h"
#include "kernels/base/thread_pool.h"

namespace trainerd::io {
namespace {

constexpr std::int64_t kMaxBlockBytes = 64 << 10, kMinBlockBytes = 4 << 10;
constexpr std::int64_t kSampleBytes = 256 << 20;  // of all files
constexpr std::int64_t kMaxPerFile = 64 << 20;
constexpr std::int64_t kMinBlocks = 3;  // per file: first, middle, last
constexpr std::int64_t kAlignment = 4;  // the widest token
constexpr std::int64_t kWholeBlockBytes = 4 << 20;
constexpr std::size_t kBlocksPerTask = 16;                // of one file, read through one descriptor
constexpr std::int64_t kIdLimit = std::int64_t{1} << 31;  // of any vocabulary
// With fewer numbers every second one may be 0 by chance.
constexpr std::int64_t kMinForHalves = 64;

std::int64_t aligned(std::int64_t offset) { return offset / kAlignment * kAlignment; }

/// A range of blocks of one file that one thread reads, [begin, end).
struct Task {
  std::size_t begin, end;
};

std::vector<Task> tasks_of(std::span<const DataBlock> blocks) {
  std::vector<Task> tasks;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (tasks.empty() || i - tasks.back().begin == kBlocksPerTask || blocks[i].file != blocks[i - 1].file)
      tasks.push_back({i, i});
    tasks.back().end = i + 1;
  }
  return tasks;
}

// A negative id, or one too large for 31 bits, becomes larger than any vocabulary.
template <class T>
std::uint32_t id_of(const std::byte* at) {
  T token;
  std::memcpy(&token, at, sizeof(T));
  if constexpr (sizeof(T) == 8)
    return std::in_range<std::int32_t>(token) ? static_cast<std::uint32_t>(token) : ~0u;
  else return static_cast<std::uint32_t>(token);
}

template <class T>
void scan(std::span<const std::byte> bytes, std::int64_t first, std::int64_t vocab, IdScan& result) {
  const std::size_t count = bytes.size() / sizeof(T);
  const auto id = [&](std::size_t i) { return id_of<T>(bytes.data() + i * sizeof(T)); };
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, id(i));
  result.tokens = static_cast<std::int64_t>(count);
  result.largest = largest;
  if constexpr (std::is_same_v<T, std::uint16_t> || std::is_same_v<T, std::uint32_t>) {
    std::array<std::uint32_t, 2> seen{};  // by parity of the position
    for (std::size_t i = 0; i + 1 < count; i += 2) seen[0] |= id(i), seen[1] |= id(i + 1);
    if (first % 2 != 0) std::swap(seen[0], seen[1]);
    result.lower_halves_zero = seen[0] == 0;
    result.upper_halves_zero = seen[1] == 0;
  }
  const std::int64_t limit = vocab == 0 ? kIdLimit : vocab;
  if (std::cmp_less(largest, limit)) return;
  result.largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::cmp_less(id(i), kIdLimit)) result.largest = std::max(result.largest, id(i));
    if (std::cmp_less(id(i), limit)) continue;
    if (result.outside++ > 0) continue;
    result.first_outside = first + static_cast<std::int64_t>(i);
    result.first_outside_id = id(i);
  }
}

}  // namespace

std::vector<DataBlock> sample_blocks(std::span<const std::int64_t> file_bytes) {
  const auto files = std::max<std::int64_t>(1, static_cast<std::int64_t>(file_bytes.size()));
  const std::int64_t share = kSampleBytes / files;
  const std::int64_t block = std::clamp(aligned(share / kMinBlocks), kMinBlockBytes, kMaxBlockBytes);
  const std::int64_t count =
      std::clamp(std::min(share, kMaxPerFile) / block, kMinBlocks, kMaxPerFile / block);
  std::vector<DataBlock> blocks;
  for (std::size_t file = 0; file < file_bytes.size(); ++file) {
    const std::int64_t bytes = file_bytes[file];
    if (bytes <= count * block) {
      for (std::int64_t at = 0; at < bytes; at += block)
        blocks.push_back({file, at, std::min(block, bytes - at)});
      continue;
    }
    const std::int64_t last = aligned(bytes - block);
    // A double, so that no product overflows. The last block is placed exactly.
    const double stride = static_cast<double>(last) / static_cast<double>(count - 1);
    for (std::int64_t i = 0; i + 1 < count; ++i)
      blocks.push_back({file, aligned(static_cast<std::int64_t>(stride * static_cast<double>(i))), block});
    blocks.push_back({file, last, bytes - last});
  }
  return blocks;
}

std::vector<DataBlock> all_blocks(std::span<const std::int64_t> file_bytes) {
  std::vector<DataBlock> blocks;
  for (std::size_t file = 0; file < file_bytes.size(); ++file)
    for (std::int64_t at = 0; at < file_bytes[file]; at += kWholeBlockBytes)
      blocks.push_back({file, at, std::min(kWholeBlockBytes, file_bytes[file] - at)});
  return blocks;
}

void read_blocks(std::span<const SourceFile> files, std::span<const DataBlock> blocks, int threads,
                 const std::function<void(std::size_t, std::span<const std::byte>)>& visit) {
  const std::vector<Task> tasks = tasks_of(blocks);
  if (tasks.empty()) return;
  std::mutex mutex;
  std::size_t failed_at = blocks.size();
  std::string failure;
  const auto fail = [&](std::size_t block, std::string what) {
    const std::lock_guard lock(mutex);
    if (block >= failed_at) return;
    failed_at = block;
    failure = std::move(what);
  };
  const int used =
      static_cast<int>(std::min<std::size_t>(static_cast<std::size_t>(std::max(1, threads)), tasks.size()));
  std::vector<std::vector<std::byte>> buffers(static_cast<std::size_t>(used));
  base::ThreadPool pool(used);
  pool.run(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t number, int thread) {
    const Task task = tasks[static_cast<std::size_t>(number)];
    const SourceFile& file = files[blocks[task.begin].file];
    std::vector<std::byte>& buffer = buffers[static_cast<std::size_t>(thread)];
    std::size_t at = task.begin;
    try {
      const DataFile opened = file.from.open(file.path);
      if (!opened) return fail(at, file.path + ": cannot be opened: " + base::errno_text(ENOENT));
      for (; at < task.end; ++at) {
        buffer.resize(std::max(buffer.size(), static_cast<std::size_t>(blocks[at].bytes)));
        const std::span<std::byte> bytes =
            std::span(buffer).first(static_cast<std::size_t>(blocks[at].bytes));
        // Sample blocks lie far from each other, unless they cover the file.
        const bool once = task.end - task.begin > 1 && blocks[task.begin].offset + blocks[task.begin].bytes !=
                                                           blocks[task.begin + 1].offset;
        const std::int64_t got =
            once ? opened.read_once(blocks[at].offset, bytes) : opened.read(blocks[at].offset, bytes);
        if (got < blocks[at].bytes) return fail(at, file.path + ": became shorter while it was read");
        visit(at, bytes);
      }
    } catch (const base::DataError& error) {
      fail(at, error.what());
    }
  });
  if (!failure.empty()) throw base::data_error(failure);
}

IdScan scan_ids(const SourceFile& file, std::int64_t offset, std::span<const std::byte> bytes,
                std::int64_t vocab) {
  const std::int64_t width = file.layout.token_bytes;
  // Number of bytes before the block's first whole token.
  const std::int64_t skip = std::min<std::int64_t>(
      offset < file.layout.data_offset ? file.layout.data_offset - offset
                                       : (width - (offset - file.layout.data_offset) % width) % width,
      static_cast<std::int64_t>(bytes.size()));
  const std::int64_t first = (offset + skip - file.layout.data_offset) / width;
  bytes = bytes.subspan(static_cast<std::size_t>(skip));
  IdScan result;
  switch (file.layout.type) {
    case TokenType::uint8: scan<std::uint8_t>(bytes, first, vocab, result); break;
    case TokenType::int8: scan<std::int8_t>(bytes, first, vocab, result); break;
    case TokenType::uint16: scan<std::uint16_t>(bytes, first, vocab, result); break;
    case TokenType::int16: scan<std::int16_t>(bytes, first, vocab, result); break;
    case TokenType::int64: scan<std::int64_t>(bytes, first, vocab, result); break;
    default: scan<std::uint32_t>(bytes, first, vocab, result);
  }
  return result;
}

std::vector<std::int32_t> read_ids(const SourceFile& file, std::int64_t count) {
  const std::int64_t width = file.layout.token_bytes;
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * width));
  const DataFile opened = file.from.open(file.path);
  if (!opened || opened.read(file.layout.data_offset, bytes) < count * width)
    throw base::data_error(file.path + ": became shorter while it was read");
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::byte* at = bytes.data() + i * width;
    switch (file.layout.type) {
      case TokenType::uint8: ids.push_back(static_cast<std::int32_t>(id_of<std::uint8_t>(at))); break;
      case TokenType::int8: ids.push_back(static_cast<std::int32_t>(id_of<std::int8_t>(at))); break;
      case TokenType::uint16: ids.push_back(static_cast<std::int32_t>(id_of<std::uint16_t>(at))); break;
      case TokenType::int16: ids.push_back(static_cast<std::int32_t>(id_of<std::int16_t>(at))); break;
      case TokenType::int64: ids.push_back(static_cast<std::int32_t>(id_of<std::int64_t>(at))); break;
      default: ids.push_back(static_cast<std::int32_t>(id_of<std::uint32_t>(at)));
    }
  }
  return ids;
}

void add(IdScan& sum, const IdScan& later) {
  if (sum.first_outside < 0)
    sum.first_outside = later.first_outside, sum.first_outside_id = later.first_outside_id;
  sum.tokens += later.tokens;
  sum.largest = std::max(sum.largest, later.largest);
  sum.outside += later.outside;
  sum.upper_halves_zero &= later.upper_halves_zero;
  sum.lower_halves_zero &= later.lower_halves_zero;
}

std::string outside_text(const SourceFile& file, std::uint32_t id, std::int64_t position,
                         std::int64_t vocab) {
  const bool is_signed = file.layout.type != TokenType::uint32 && file.layout.type != TokenType::int64;
  const std::string shown = file.layout.type == TokenType::int64 && id == ~0u ? "beyond 31 bits"
                            : is_signed ? std::to_string(static_cast<std::int32_t>(id))
                                        : std::to_string(id);
  const std::int64_t byte = file.layout.data_offset + position * file.layout.token_bytes;
  if (vocab == 0)
    return fmt::format(
        "{}: token {} at position {} (byte {}) is no id: ids are from 0 to {}: the file is damaged, or holds "
        "something else than {}",
        file.path, shown, position, byte, kIdLimit - 1, name_of(file.layout.type));
  return fmt::format(
      "{}: token {} at position {} (byte {}) is outside the vocabulary of {}: the data was made with another "
      "tokenizer, "
      "model.vocab is too small, or the file's ids are not {}",
      file.path, shown, position, byte, vocab, name_of(file.layout.type));
}

std::string ids_problem(const SourceFile& file, const IdScan& scan, std::int64_t vocab) {
  if (scan.outside > 0) return outside_text(file, scan.first_outside_id, scan.first_outside, vocab);
  const bool headerless = file.layout.kind == TokenLayout::Kind::headerless;
  if (headerless && scan.tokens >= kMinForHalves && scan.upper_halves_zero && !scan.lower_halves_zero) {
    const char* held = file.layout.token_bytes == 2 ? "int32" : "int64";
    return fmt::format(
        "{}: every second one of its {} ids looked at is 0: it holds {}, not {}; set data.dtype: {}",
        file.path, with_commas(scan.tokens), held, name_of(file.layout.type), held);
  }
  return "";
}

std::string check_and_hash(std::span<const SourceFile> files, std::int64_t vocab, int threads) {
  std::vector<std::int64_t> sizes;
  for (const SourceFile& file : files) sizes.push_back(file.bytes);
  const std::vector<DataBlock> blocks = sample_blocks(sizes);
  std::vector<IdScan> scans(blocks.size());
  std::vector<std::string> hashes(blocks.size());
  read_blocks(files, blocks, threads, [&](std::size_t i, std::span<const std::byte> bytes) {
    scans[i] = scan_ids(files[blocks[i].file], blocks[i].offset, bytes, vocab);
    hashes[i] = xxh3_hex(bytes);
  });
  Xxh3 hash;
  const auto update = [&hash](const std::string& text) { hash.update(std::as_bytes(std::span(text))); };
  for (std::size_t i = 0; i < blocks.size();) {
    const std::size_t file = blocks[i].file;
    IdScan sum;
    update("file of " + std::to_string(files[file].bytes) + "\n");
    for (; i < blocks.size() && blocks[i].file == file; ++i) {
      add(sum, scans[i]);
      update(hashes[i]);
    }
    if (const std::string problem = ids_problem(files[file], sum, vocab); !problem.empty())
      throw base::data_error(problem);
  }
  return hash.hex();
}

}  // namespace trainerd::io
