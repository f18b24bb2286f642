// Numbers of JSON, read straight into tensors. No part of the runtime: flexcomp/serving/json_numbers.py calls this
// through ctypes.
//
// The text of a request is walked once, and arrays under a key "data" are cut out. The rest, the outline, is small, and
// another reader of JSON makes objects of the outline. This reader finds a NaN in place of an array, and so the text
// itself may have none. Whether a text is JSON at all is decided by that reader, and for the arrays by
// FlexcompJsonNumbers.
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>

#define FLEXCOMP_JSON extern "C" __attribute__((visibility("default")))

namespace {

constexpr std::string_view kCut = "NaN";

// The work of another reader with an outline, from which the reader's memory can be estimated.
struct Outline {
  int64_t nbytes, arrays;                      // of the outline; cut out of the text
  int64_t commas, brackets, braces, quotes;    // that are left
  int64_t not_ascii;                           // whether there are such bytes
  int64_t word;                                // where the text says NaN or Infinity; -1: nowhere
};

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Where the string that begins at `at` ends, its quotes included.
int64_t EndOfString(std::string_view text, int64_t at) {
  const auto size = static_cast<int64_t>(text.size());
  for (++at; at < size && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at < size ? at + 1 : size;
}

// Where the array that begins at `at` ends, if only numbers, truths and other arrays are inside; else 0.
int64_t EndOfNumbers(std::string_view text, int64_t at) {
  int64_t depth = 0;
  for (const auto size = static_cast<int64_t>(text.size()); at < size; ++at) {
    const char c = text[at];
    if (c == '[') {
      ++depth;
    } else if (c == ']') {
      if (--depth == 0) return at + 1;
    } else if (c == '\0' || (!std::strchr("0123456789+-.eE,truefals", c) && !IsSpace(c))) {
      return 0;
    }
  }
  return 0;
}

void Count(Outline& outline, std::string_view text) {
  for (const char c : text) {
    outline.commas += c == ',';
    outline.brackets += c == '[';
    outline.braces += c == '{';
    outline.quotes += c == '"';
    outline.not_ascii |= static_cast<unsigned char>(c) > 127;
  }
}

enum Status : int32_t {
  kFine,
  kNotJson,
  kNotNested,
  kWrongKind,
  kBeyond
};
enum Kind : int32_t {
  kBool,
  kSigned,
  kUnsigned,
  kFloat
};

// Whether a number that no double holds is too small for one, and not too large.
bool IsTiny(std::string_view digits) {
  const size_t at = digits.find_first_of("eE");
  const std::string_view mantissa = digits.substr(0, at);
  const size_t point = mantissa.find('.');
  const size_t first = mantissa.find_first_of("123456789");
  if (first == std::string_view::npos) return true;
  const auto whole = static_cast<int64_t>(point == std::string_view::npos ? mantissa.size() : point);
  int64_t exponent = 0;
  if (at != std::string_view::npos) {
    const bool is_negative = digits[at + 1] == '-';
    const size_t begin = at + 1 + (digits[at + 1] == '-' || digits[at + 1] == '+');
    if (std::from_chars(digits.data() + begin, digits.data() + digits.size(), exponent).ec != std::errc()) return is_negative;
    if (is_negative) exponent = -exponent;
  }
  return whole - static_cast<int64_t>(first) + exponent < 0;
}

class Reader {
 public:
  Reader(std::string_view text, Kind kind, int32_t size, void* to)
      : text_(text), kind_(kind), size_(size), to_(static_cast<char*>(to)) {}

  // The array, nested as deep as `rank` extents.
  Status Read(const int64_t* shape, int64_t rank) {
    if (const Status status = Array(shape, rank); status != kFine) return status;
    return at_ == text_.size() ? kFine : kNotJson;
  }

 private:
  void Skip() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
  }

  bool Take(char c) {
    Skip();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  Status Array(const int64_t* shape, int64_t rank) {
    if (!Take('[')) return kNotNested;
    for (int64_t index = 0; index < *shape; ++index) {
      if (index != 0 && !Take(',')) return Take(']') ? kNotNested : kNotJson;
      if (const Status status = rank > 1 ? Array(shape + 1, rank - 1) : Value(); status != kFine) return status;
    }
    return Take(']') ? kFine : kNotNested;
  }

  Status Value() {
    Skip();
    const std::string_view left = text_.substr(at_);
    if (left.empty() || left[0] == ',') return kNotJson;
    if (left[0] == '[' || left[0] == ']') return kNotNested;
    if (left[0] == '"' || left[0] == '{' || left[0] == 'n') return kWrongKind;  // of a list that another reader made
    for (const std::string_view word : {"true", "false"}) {
      if (left.substr(0, word.size()) == word) {
        at_ += word.size();
        return kind_ == kBool ? Put<uint8_t>(word == "true") : kWrongKind;
      }
    }
    bool is_whole = true;
    const size_t nbytes = Grammar(left, &is_whole);
    if (nbytes == 0) return kNotJson;
    at_ += nbytes;
    if (kind_ == kBool || (kind_ != kFloat && !is_whole)) return kWrongKind;
    return kind_ == kFloat ? Float(left.substr(0, nbytes)) : Integer(left.substr(0, nbytes));
  }

  // How much of `text` is a number; 0 if none stands at its start.
  static size_t Grammar(std::string_view text, bool* is_whole) {
    size_t at = 0;
    const auto digits = [&] {
      const size_t begin = at;
      while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
      return at - begin;
    };
    if (text[at] == '-') ++at;
    const size_t begin = at, whole = digits();
    if (whole == 0 || (whole > 1 && text[begin] == '0')) return 0;
    if (at < text.size() && text[at] == '.') {
      ++at;
      *is_whole = false;
      if (digits() == 0) return 0;
    }
    if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
      ++at;
      *is_whole = false;
      if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
      if (digits() == 0) return 0;
    }
    return at;
  }

  Status Float(std::string_view digits) {
    double value = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec == std::errc::result_out_of_range) {
      const bool is_negative = digits[0] == '-';
      if (!IsTiny(digits.substr(is_negative))) return kBeyond;
      value = is_negative ? -0.0 : 0.0;
    }
    if (size_ == sizeof(double)) return Put(value);
    const auto narrow = static_cast<float>(value);
    return std::isinf(narrow) ? kBeyond : Put(narrow);
  }

  Status Integer(std::string_view digits) {
    const char* const end = digits.data() + digits.size();
    const int bits = 8 * size_;
    if (kind_ == kUnsigned) {
      const bool is_negative = digits[0] == '-';
      uint64_t value = 0;
      if (std::from_chars(digits.data() + is_negative, end, value).ec != std::errc() || (is_negative && value != 0)) return kBeyond;
      if (bits < 64 && value >> bits != 0) return kBeyond;
      return PutBytes(&value);
    }
    int64_t value = 0;
    if (std::from_chars(digits.data(), end, value).ec != std::errc()) return kBeyond;
    const int64_t most = std::numeric_limits<int64_t>::max() >> (64 - bits);
    return value > most || value < -most - 1 ? kBeyond : PutBytes(&value);
  }

  template <typename T>
  Status Put(T value) {
    return PutBytes(&value);
  }

  // The first bytes: machines are little-endian.
  Status PutBytes(const void* value) {
    std::memcpy(to_, value, size_);
    to_ += size_;
    return kFine;
  }

  std::string_view text_;
  size_t at_ = 0;
  Kind kind_;
  int32_t size_;
  char* to_;
};

}  // namespace

// Measure the outline of the text; and where the other pointers are not null, write the outline, and the begin and end
// of each array that the outline lacks.
FLEXCOMP_JSON void FlexcompJsonOutline(const char* begin, int64_t nbytes, Outline* outline, char* to, int64_t* arrays) {
  const std::string_view text(begin, nbytes);
  *outline = Outline{};
  outline->word = -1;
  const auto put = [&](std::string_view part) {
    if (to != nullptr) {
      std::memcpy(to + outline->nbytes, part.data(), part.size());
    } else {
      Count(*outline, part);
    }
    outline->nbytes += static_cast<int64_t>(part.size());
  };
  bool is_key = false, is_data = false;  // a string "data" came last; a colon after it
  for (int64_t at = 0; at < nbytes;) {
    const char c = text[at];
    int64_t end = at + 1;
    if (c == '"') {
      end = EndOfString(text, at);
      is_key = text.substr(at, end - at) == "\"data\"";
      is_data = false;
    } else if (const int64_t after = c == '[' && is_data ? EndOfNumbers(text, at) : 0; after != 0) {
      if (arrays != nullptr) {
        arrays[2 * outline->arrays] = at;
        arrays[2 * outline->arrays + 1] = after;
      }
      ++outline->arrays;
      put(kCut);
      at = after;
      is_key = is_data = false;
      continue;
    } else if (c == 'N' || c == 'I') {
      if (outline->word < 0) outline->word = at;
    } else if (!IsSpace(c)) {
      is_data = is_key && c == ':';
      is_key = false;
    }
    put(text.substr(at, end - at));
    at = end;
  }
}

// Read an array that was cut out, of numbers of that many bytes, nested as the extents say; one of Status.
FLEXCOMP_JSON int32_t FlexcompJsonNumbers(const char* text, int64_t nbytes, int32_t kind, int32_t size, const int64_t* shape,
                                          int64_t rank, void* to) {
  return Reader({text, static_cast<size_t>(nbytes)}, static_cast<Kind>(kind), size, to).Read(shape, rank);
}
