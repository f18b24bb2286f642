// The arguments of a layer's kernel, and the symbol of the code that takes these.
#pragma once

#include <string>

#include "program/program.h"

namespace flexcomp {

// The symbol, but for tvm_ffi's prefix: the kernel's name and a hash of its signature, as flexcomp/program/signature.py has them.
// Code that takes other arguments has another symbol.
std::string SymbolOf(const Layer& layer);
// Of the kernel that prepares a layer's weights.
std::string PreparationSymbolOf(const Layer& layer);

}  // namespace flexcomp
