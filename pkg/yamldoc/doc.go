// Package yamldoc reads YAML files of several documents, each an object of a known
// type, and says of everything that is wrong at which file, document, line and field.
package yamldoc
