// Reports as JSON.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace flexcomp::runner {

// A value as text. Objects keep the order of their members, and take no member twice.
class Json {
 public:
  static Json Array() { return Json(Raw{"[]"}); }
  static Json Object() { return Json(Raw{"{}"}); }
  static Json Parsed(std::string text) { return Json(Raw{std::move(text)}); }  // that is JSON already

  Json(std::nullptr_t) : text_("null") {}
  Json(bool value) : text_(value ? "true" : "false") {}
  Json(std::integral auto value) : text_(std::to_string(value)) {}
  Json(double value) {
    char digits[32];
    text_.assign(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
  Json(std::string_view value) : text_("\"") {
    for (const char byte : value) {
      char escape[8];
      if (static_cast<unsigned char>(byte) < 0x20) std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      else std::snprintf(escape, sizeof escape, "%s%c", byte == '"' || byte == '\\' ? "\\" : "", byte);
      text_ += escape;
    }
    text_ += '"';
  }
  Json(const char* value) : Json(std::string_view(value)) {}
  Json(const std::string& value) : Json(std::string_view(value)) {}

  void Append(const Json& value) { Insert(value.text_); }
  void Set(std::string_view key, const Json& value) { Insert(Json(key).text_ + ": " + value.text_); }
  const std::string& text() const noexcept { return text_; }

 private:
  struct Raw {
    std::string text;
  };
  explicit Json(Raw raw) : text_(std::move(raw.text)) {}
  void Insert(const std::string& member) { text_.insert(text_.size() - 1, (text_.size() > 2 ? ", " : "") + member); }

  std::string text_;
};

}  // namespace flexcomp::runner
