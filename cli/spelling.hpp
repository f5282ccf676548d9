// Suggestions for misspelt commands and options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace rocflash::cli {

// The known word that is the fewest edits (insert, delete, replace, swap) away; empty if even that
// one needs more than a third of its letters.
std::string closest(const std::string& word, const std::vector<std::string>& known);

// What is wrong with words that the command line does not have: which one, and what it may mean.
// Empty if all words are known.
std::string unknown_words(const CLI::App& app);

}  // namespace rocflash::cli
