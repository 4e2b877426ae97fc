#pragma once

#include <string>
#include <string_view>

namespace trainerd::parallel {

/// The secret that the processes of one job share. Each side proves to the other that it has the token
/// without sending it (a challenge and its HMAC-SHA256, RFC 2104), before any message is accepted. The token
/// keeps other programs out of the job; it does not encrypt the job's messages.
class JobToken {
 public:
  static constexpr std::size_t kShortest = 16;    ///< characters
  static constexpr std::size_t kNonceBytes = 32;  ///< of a challenge
  static constexpr std::size_t kProofBytes = 32;
  /// The side that gives the proof; the other side cannot use it as its own.
  enum class Side { client, server };

  /// 64 hexadecimal digits from the operating system's random numbers. Throws DeviceError without them.
  static JobToken random();
  /// Throws SpecError when `text` is shorter than kShortest. The error names `from` as its origin.
  JobToken(std::string text, const std::string& from);

  const std::string& text() const { return text_; }
  /// The proof that `side` has the token, from both sides' challenges.
  std::string proof(Side side, std::string_view client_nonce, std::string_view server_nonce) const;

 private:
  explicit JobToken(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

/// Unpredictable bytes. Throws DeviceError.
std::string random_bytes(std::size_t count);

/// Compares in constant time, which does not reveal where the two differ.
bool same_bytes(std::string_view a, std::string_view b);

}  // namespace trainerd::parallel
