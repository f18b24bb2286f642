#include "api/status.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace flexcomp::api {
namespace {

thread_local char message[1024];

struct Named {
  const char* kind;  // of errors; nullptr: none
  flexcomp_status status;
  const char* name;
};

constexpr Named kStatuses[] = {
    {nullptr, FLEXCOMP_OK, "OK"},
    {kCancelled, FLEXCOMP_CANCELLED, "CANCELLED"},
    {"InputError", FLEXCOMP_ERROR_INPUT, "INPUT"},
    {"ArtifactError", FLEXCOMP_ERROR_ARTIFACT, "ARTIFACT"},
    {"BudgetError", FLEXCOMP_ERROR_BUDGET, "BUDGET"},
    {"TargetError", FLEXCOMP_ERROR_TARGET, "TARGET"},
    {"StorageError", FLEXCOMP_ERROR_STORAGE, "STORAGE"},
    {"ExecutionError", FLEXCOMP_ERROR_EXECUTION, "EXECUTION"},
    {nullptr, FLEXCOMP_ERROR_OUT_OF_MEMORY, "OUT_OF_MEMORY"},
    {kUnsupported, FLEXCOMP_ERROR_UNSUPPORTED, "UNSUPPORTED"},
    {kClosed, FLEXCOMP_ERROR_CLOSED, "CLOSED"},
    {"RefusedError", FLEXCOMP_REFUSED, "REFUSED"},
};

bool Continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }  // a character of UTF-8

}  // namespace

flexcomp_status Note(flexcomp_status status, std::string_view text) noexcept {
  size_t length = std::min(text.size(), sizeof message - 1);
  if (length < text.size())  // no half characters
    while (length > 0 && Continues(text[length])) --length;
  std::memcpy(message, text.data(), length);
  message[length] = '\0';
  std::replace(message, message + length, '\n', ' ');
  return status;
}

flexcomp_status StatusOf(std::string_view kind) noexcept {
  for (const Named& one : kStatuses)
    if (one.kind != nullptr && kind == one.kind) return one.status;
  return FLEXCOMP_ERROR_EXECUTION;
}

}  // namespace flexcomp::api

const char* flexcomp_message(void) { return flexcomp::api::message; }

const char* flexcomp_status_name(flexcomp_status status) {
  for (const auto& one : flexcomp::api::kStatuses)
    if (one.status == status) return one.name;
  return "UNKNOWN";
}

const char* flexcomp_version(void) { return FLEXCOMP_VERSION; }

int32_t flexcomp_abi(void) { return FLEXCOMP_ABI; }
