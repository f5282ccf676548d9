#include "spelling.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace rocflash::cli {
namespace {

// The optimal string alignment distance.
std::size_t edits(const std::string& a, const std::string& b) {
  const std::size_t columns = b.size() + 1;
  std::vector<std::size_t> d((a.size() + 1) * columns);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& { return d[i * columns + j]; };
  for (std::size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (std::size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return at(a.size(), b.size());
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(each->get_name());
    for (const std::string& alias : each->get_aliases()) names.push_back(alias);
  }
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* each : app.get_options()) {
    for (const std::string& name : each->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string unknown_command(const CLI::App& app, const std::string& name) {
  const std::string meant = closest(name, commands_of(app));
  return fmt::format("{}: '{}' is not a command{}", app.get_name(), name,
                     meant.empty() ? "" : "; did you mean '" + meant + "'?");
}

}  // namespace

std::string closest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = 0;
  for (const std::string& each : known) {
    const std::size_t needed = edits(word, each);
    if (3 * needed > std::max(word.size(), each.size())) continue;
    if (best.empty() || needed < least) best = each, least = needed;
  }
  return best;
}

std::string unknown_words(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(true);
  if (words.empty()) return {};
  const auto subcommands = app.get_subcommands();
  const bool option = words.front().starts_with("-");
  if (subcommands.empty() && !option) return unknown_command(app, words.front());
  const CLI::App& command = subcommands.empty() ? app : *subcommands.front();
  const std::string title = subcommands.empty() ? app.get_name() : "rocflash " + command.get_name();
  if (!option) return fmt::format("{}: '{}' is not expected", title, words.front());
  const std::string name = words.front().substr(0, words.front().find('='));
  const std::string meant = closest(name, options_of(command));
  return fmt::format("{}: '{}' is not an option{}", title, name,
                     meant.empty() ? "" : "; did you mean '" + meant + "'?");
}

}  // namespace rocflash::cli
