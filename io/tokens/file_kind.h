#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace trainerd::io {

/// A kind of file that holds neither plain text nor a plain array of tokens.
struct ForeignKind {
  std::string what;    ///< "a gzip archive"
  std::string remedy;  ///< what to do with it
};

/// The kind of a file of `file_bytes` bytes that starts with `head`, by its magic number: compressed files
/// and archives, Megatron's index, Parquet, Arrow, NumPy, safetensors, ELF and others. None: no such number.
std::optional<ForeignKind> foreign_kind(std::span<const std::byte> head, std::int64_t file_bytes);

/// Whether a file that starts with `head` is text: valid UTF-8 without control characters, long enough that
/// an array of numbers would not pass for it. `whole`: `head` is all of the file.
bool looks_like_text(std::span<const std::byte> head, bool whole);

/// Whether the name is that of a file of JSON lines.
bool is_json_lines(const std::string& path);

}  // namespace trainerd::io
