package config

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// origin is where values come from, so that an error can name the place.
type origin struct {
	files map[string]string // by kind
	flags map[string]string // names without dashes, by field path, which starts with the kind
}

// explain joins errors into one, each at the place where the value was given.
func (o origin) explain(list field.ErrorList) error {
	errs := make([]error, 0, len(list))
	for _, err := range list {
		errs = append(errs, fmt.Errorf("%s: %s", o.place(err.Field), err.ErrorBody()))
	}
	return errors.Join(errs...)
}

// place returns where the value at a field path comes from: the flag, the file and the
// field, or the field alone when it has its default.
func (o origin) place(path string) string {
	for above, flag := range o.flags {
		if rest, ok := strings.CutPrefix(path, above); ok && (rest == "" || rest[0] == '[' || rest[0] == '.') {
			return "--" + flag + rest
		}
	}
	kind, rest, _ := strings.Cut(path, ".")
	if file := o.files[kind]; file != "" {
		return file + ": " + rest
	}
	return path
}
