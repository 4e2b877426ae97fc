#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

// Message format of the TCP store, for client and server.

namespace trainerd::parallel::frames {

inline constexpr std::string_view kGreeting = "trainerd store 2";
inline constexpr std::size_t kLongestKey = 4096;

// Requests.
inline constexpr char kGreet = 'H';  ///< value: the greeting, then the client's challenge
inline constexpr char kProve = 'P';  ///< value: the client's proof that it has the job's token
inline constexpr char kSet = 'S';
inline constexpr char kGet = 'G';
inline constexpr char kWait = 'W';  ///< value: milliseconds, in decimal
inline constexpr char kAdd = 'A';   ///< value: a number, in decimal
inline constexpr char kJoin = 'J';  ///< value: the text of the joining process; no request follows
// Answers.
inline constexpr char kDone = 'o';
inline constexpr char kValue = 'v';
inline constexpr char kNothing = 'n';
inline constexpr char kError = 'e';
inline constexpr char kChallenge = 'c';  ///< value: the server's challenge, then its proof

inline void put_length(std::string& out, std::size_t value) {
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>((value >> shift) & 0xff);
}
inline std::size_t read_length(std::string_view four) {
  std::size_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value |= static_cast<std::size_t>(static_cast<unsigned char>(four[i])) << (8 * i);
  return value;
}

inline std::string request(char what, std::string_view key, std::string_view value) {
  std::string frame;
  put_length(frame, 5 + key.size() + value.size());
  frame += what;
  put_length(frame, key.size());
  return frame.append(key).append(value);
}
inline std::string answer(char what, std::string_view value = {}) {
  std::string frame;
  put_length(frame, 1 + value.size());
  return (frame += what).append(value);
}

struct Request {
  char what = 0;
  std::string_view key, value;
};
/// Parses the body of a frame (without its length); none if it is not a valid request.
inline std::optional<Request> parse_request(std::string_view body) {
  if (body.size() < 5) return std::nullopt;
  const std::size_t key = read_length(body.substr(1, 4));
  if (key > kLongestKey || key > body.size() - 5) return std::nullopt;
  return Request{body[0], body.substr(5, key), body.substr(5 + key)};
}

}  // namespace trainerd::parallel::frames
