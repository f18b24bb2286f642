// From errors to statuses: nothing is thrown out of the C interface.
#pragma once

#include <flexcomp.h>
#include <tvm/ffi/error.h>

#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "base/error.h"

namespace flexcomp::api {

// Kinds of errors; the others are those of flexcomp/errors.py.
constexpr const char kUnsupported[] = "Unsupported", kClosed[] = "Closed", kCancelled[] = "CancelledError";

// Keeps the message for the calling thread, or another one where there is no memory for it. Returns the status.
flexcomp_status Note(flexcomp_status status, std::string_view message) noexcept;

// That of an error of ours.
flexcomp_status StatusOf(std::string_view kind) noexcept;

// Thrown to end a call with a status of the caller's, who knows why.
struct Ended {
  flexcomp_status status;
};

// Every function of the interface is this call.
template <typename Function>
flexcomp_status Guarded(const Function& function) noexcept {
  try {
    function();
    return FLEXCOMP_OK;
  } catch (const tvm::ffi::Error& error) {
    const TVMFFIErrorCell& cell = *static_cast<const tvm::ffi::ErrorObj*>(error.get());
    return Note(StatusOf({cell.kind.data, cell.kind.size}), {cell.message.data, cell.message.size});
  } catch (const Ended& ended) {
    return Note(ended.status, "a callback ended the inference");
  } catch (const std::bad_alloc&) {
    return Note(FLEXCOMP_ERROR_OUT_OF_MEMORY, "the process is out of memory: besides the budget it needs some for itself");
  } catch (const std::exception& error) {
    return Note(FLEXCOMP_ERROR_EXECUTION, error.what());
  } catch (...) {
    return Note(FLEXCOMP_ERROR_EXECUTION, "an error of an unknown kind");
  }
}

}  // namespace flexcomp::api
