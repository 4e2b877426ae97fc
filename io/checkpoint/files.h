#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "io/checkpoint/checkpoint.h"
#include "io/storage/storage.h"

// Files in the folder of one checkpoint, shared by its writer and its reader.

namespace trainerd::io {

inline constexpr const char* kManifestFile = "manifest.json";
/// Written last. Holds the manifest's checksum, so the chain of checksums starts at the file that marks the
/// checkpoint complete.
inline constexpr const char* kMarkerFile = "COMPLETE";
/// Empty file. Added to a complete checkpoint when the losses after it stayed normal.
inline constexpr const char* kGoodFile = "GOOD";
inline constexpr std::int64_t kMarkerBytes = 33;  ///< 32 hex digits and a newline

inline std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

/// Returns "shard-00003.safetensors".
std::string shard_file(std::int64_t rank);
/// Reads the manifest of the checkpoint at the storage's root and checks it against the marker. Throws
/// CheckpointError.
Manifest read_manifest(const Storage& storage);
/// Returns the checksum of all bytes of a file, as in the manifest; `chunk` is the read buffer.
std::string checksum_of(const StoredFile& file, std::span<std::byte> chunk);
/// Size of that buffer.
inline constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
/// Reads the header of a safetensors file; `path` is for messages. Throws CheckpointError.
SafetensorsHeader read_header(const StoredFile& file, const std::string& path);

}  // namespace trainerd::io
