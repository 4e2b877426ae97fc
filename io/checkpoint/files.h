#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "io/checkpoint/checkpoint.h"
#include "io/storage/storage.h"

// The files of one checkpoint's folder, shared by its writer and its reader.

namespace trainerd::io {

inline constexpr const char* kManifestFile = "manifest.json";
/// Made last; holds the manifest's checksum, so that the chain of checksums starts at the file that says
/// "whole".
inline constexpr const char* kMarkerFile = "COMPLETE";
/// Empty; made in a complete checkpoint when the losses that followed it stayed sane.
inline constexpr const char* kGoodFile = "GOOD";
inline constexpr std::int64_t kMarkerBytes = 33;  ///< 32 hex digits and a newline

inline std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

/// "shard-00003.safetensors".
std::string shard_file(std::int64_t rank);
/// The manifest of the checkpoint at the storage's root, checked against the marker. Throws CheckpointError.
Manifest read_manifest(const Storage& storage);
/// The checksum of all its bytes, as the manifest has it; `chunk` is what they are read into.
std::string checksum_of(const StoredFile& file, std::span<std::byte> chunk);
/// Of such a chunk.
inline constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
/// The header of a safetensors file; `path` is for messages. Throws CheckpointError.
SafetensorsHeader read_header(const StoredFile& file, const std::string& path);

}  // namespace trainerd::io
