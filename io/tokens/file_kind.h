#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace trainerd::io {

/// A file type that is neither plain text nor a plain array of tokens.
struct ForeignKind {
  std::string what;    ///< "a gzip-compressed file"
  std::string remedy;  ///< what to do with it
};

/// Returns the type of a file of `file_bytes` bytes that starts with `head`, by its magic number: compressed
/// files and archives, Megatron's index, Parquet, Arrow, NumPy, safetensors, ELF and others. Else none.
std::optional<ForeignKind> foreign_kind(std::span<const std::byte> head, std::int64_t file_bytes);

/// Returns true if a file that starts with `head` is text: valid UTF-8 without control characters, and long
/// enough that an array of numbers is not mistaken for it. `whole`: `head` is the entire file.
bool looks_like_text(std::span<const std::byte> head, bool whole);

/// Returns true if the name ends as a file of JSON lines (.jsonl, .ndjson).
bool is_json_lines(const std::string& path);

}  // namespace trainerd::io
