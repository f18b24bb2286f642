// Notes on a run for the user, besides its figures.
#pragma once

#include <flexcomp.h>

#include "json.h"

namespace flexcomp::runner {

// A list of sentences.
Json Notes(const flexcomp_session_info& info);

// Cores by number, of a list such as "0-3,6"; null: any.
Json CoresIn(const char* list);

}  // namespace flexcomp::runner
