// What opening a session and adding one to a pool have in common.
#pragma once

#include <flexcomp.h>

#include <memory>
#include <string>

#include "library/load.h"
#include "program/shapes.h"

namespace flexcomp::api {

// The shapes of a library, which the caller named so. Throws ArtifactError, and Unsupported for one of another version.
Shapes ShapesOf(const LoadedLibrary& library, const std::string& given);

// The caller's options, or the defaults. Throws InputError, Unsupported.
flexcomp_options TakenOptions(const flexcomp_options* given);

}  // namespace flexcomp::api
