// Compresses one code object for embedding: compress INPUT OUTPUT [BASE].
//
// Members of a family differ in a few bytes of the header, the metadata and the descriptors. With a
// base (the family's first member) as zstd prefix, only the difference takes space.
#include <zstd.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::vector<char> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::size_t checked(std::size_t code) {
  if (ZSTD_isError(code)) throw std::runtime_error(ZSTD_getErrorName(code));
  return code;
}

void compress(const std::string& input, const std::string& output, const std::string& base) {
  const std::vector<char> source = read(input);
  const std::vector<char> prefix = base.empty() ? std::vector<char>() : read(base);
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(),
                                                                     &ZSTD_freeCCtx);
  const auto set = [&](ZSTD_cParameter parameter, int value) {
    checked(ZSTD_CCtx_setParameter(context.get(), parameter, value));
  };
  set(ZSTD_c_compressionLevel, 19);
  set(ZSTD_c_checksumFlag, 1);
  // The window must reach from the end of the object to the start of its base.
  set(ZSTD_c_windowLog, 27);
  set(ZSTD_c_enableLongDistanceMatching, 1);
  if (!prefix.empty()) {
    checked(ZSTD_CCtx_refPrefix(context.get(), prefix.data(), prefix.size()));
  }
  std::vector<char> packed(ZSTD_compressBound(source.size()));
  packed.resize(checked(
      ZSTD_compress2(context.get(), packed.data(), packed.size(), source.data(), source.size())));
  std::ofstream file(output, std::ios::binary);
  file.write(packed.data(), static_cast<std::streamsize>(packed.size()));
  file.close();
  if (!file) throw std::runtime_error("cannot write " + output);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3 && count != 4) {
    std::fprintf(stderr, "usage: %s INPUT OUTPUT [BASE]\n", arguments[0]);
    return 2;
  }
  try {
    compress(arguments[1], arguments[2], count == 4 ? arguments[3] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", arguments[0], error.what());
    return 1;
  }
  return 0;
}
