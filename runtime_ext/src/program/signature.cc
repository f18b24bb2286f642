// The grammar stands in flexcomp/program/signature.py, the authority.
#include "program/signature.h"

namespace flexcomp {
namespace {

char KindOf(const Layer& layer, size_t index) {
  const Arg& arg = layer.args[index];
  switch (arg.kind) {
    case ArgKind::kScratch:
      return 's';
    case ArgKind::kWeight:
      return index + 1 < layer.args.size() && layer.args[index + 1].kind == ArgKind::kFirst ? 'p' : 'r';
    default:
      return arg.exchanged     ? 'x'
             : arg.written > 0 ? 'w'
             : arg.over        ? 'o'
                               : 'r';
  }
}

std::string TextOf(const TensorType& type, bool panel) {
  const uint64_t elements = type.nbytes / (type.dtype.bits / 8), blocks = panel ? type.shape[0] : 1;
  return (type.dtype.code == kDLBool ? "int8" : DtypeName(type.dtype)) + "[" +
         (panel ? std::to_string(blocks) + "," : "") + std::to_string(elements / blocks) + "]";
}

std::string SignatureOf(const Layer& layer) {
  std::string text;
  for (size_t i = 0; i < layer.args.size(); ++i) {
    if (i > 0) text += ';';
    const Arg& arg = layer.args[i];
    if (arg.kind == ArgKind::kFirst) {
      text += "first";
    } else if (arg.kind == ArgKind::kCount) {
      text += "count";
    } else if (arg.kind == ArgKind::kValid) {
      text += "valid";
    } else {
      const char kind = KindOf(layer, i);
      text += kind;
      text += ' ';
      text += TextOf(arg.type, kind == 'p');
      for (size_t b = 0; b < arg.bounds.size(); ++b)
        text += (b == 0 ? "{" : ",") + std::to_string(arg.bounds[b].low) + ":" + std::to_string(arg.bounds[b].high);
      if (!arg.bounds.empty()) text += '}';
    }
  }
  return text;
}

std::string Symbol(const std::string& kernel, const std::string& signature) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char byte : signature) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  std::string symbol = kernel + '_';
  for (int shift = 60; shift >= 0; shift -= 4) symbol += "0123456789abcdef"[hash >> shift & 15];
  return symbol;
}

}  // namespace

std::string SymbolOf(const Layer& layer) { return Symbol(layer.kernel, SignatureOf(layer)); }

std::string PreparationSymbolOf(const Layer& layer) {
  const Preparation& preparation = *layer.weights->preparation;
  const TensorType& panel = PanelOf(layer)->type;
  return Symbol(preparation.kernel, "p " + TextOf(preparation.stored, true) + ";first;count;p " + TextOf(panel, true) +
                                        ";channels " + std::to_string(preparation.channels) + " of " +
                                        std::to_string(preparation.stored.shape.back()) + "," + std::to_string(panel.shape.back()));
}

}  // namespace flexcomp
