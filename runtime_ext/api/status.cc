#include "api/status.h"

#include <pthread.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace flexcomp::api {
namespace {

constexpr size_t kLongest = 1024;  // bytes of a message, with the zero
constexpr char kNothing[] = "", kNoMemory[] = "the process is out of memory, for the reason of the failure, too";

// A thread's message. Not thread_local: in a library that is opened at run time the first use of such a variable allocates, and where
// there is no memory that ends the process.
class Message {
 public:
  static const char* Get() noexcept {
    const void* const found = ::pthread_getspecific(Key());
    return found != nullptr ? static_cast<const char*>(found) : kNothing;
  }

  // nullptr: there is no memory for a message, and the thread has another one that says so.
  static char* Writable() noexcept {
    auto* found = static_cast<char*>(::pthread_getspecific(Key()));
    if (found != nullptr && found != kNoMemory) return found;
    found = static_cast<char*>(std::malloc(kLongest));
    if (found != nullptr && ::pthread_setspecific(Key(), found) == 0) return found;
    std::free(found);
    ::pthread_setspecific(Key(), kNoMemory);
    return nullptr;
  }

 private:
  static pthread_key_t Key() noexcept {
    static const pthread_key_t key = [] {
      pthread_key_t made = PTHREAD_KEYS_MAX;  // no thread has a message under a key that was not made
      ::pthread_key_create(&made, [](void* message) {
        if (message != kNoMemory) std::free(message);
      });
      return made;
    }();
    return key;
  }
};

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
  char* const message = Message::Writable();
  if (message == nullptr) return status;
  size_t length = std::min(text.size(), kLongest - 1);
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

const char* flexcomp_message(void) { return flexcomp::api::Message::Get(); }

const char* flexcomp_status_name(flexcomp_status status) {
  for (const auto& one : flexcomp::api::kStatuses)
    if (one.status == status) return one.name;
  return "UNKNOWN";
}

const char* flexcomp_version(void) { return FLEXCOMP_VERSION; }

int32_t flexcomp_abi(void) { return FLEXCOMP_ABI; }
