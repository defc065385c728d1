// Package setting has errors that name a field of the configuration, for packages that do not
// know what users type to set it.
package setting

import (
	"fmt"
	"strings"
)

// Error is an error that names a field of the configuration in its text.
type Error interface {
	error
	// Field is the path of the field in a BeelineConfiguration, as tables.maxFlows; "" is none.
	Field() string
}

// Errorf returns an [Error] that begins with the field. It wraps what [fmt.Errorf] would.
func Errorf(field, format string, args ...any) error {
	return &fieldError{field, fmt.Errorf(format, args...)}
}

type fieldError struct {
	field string
	err   error
}

func (e *fieldError) Error() string { return e.field + ": " + e.err.Error() }
func (e *fieldError) Field() string { return e.field }
func (e *fieldError) Unwrap() error { return e.err }

// Text returns the text of err, in which each [Error] that it wraps names what flag returns
// for its field. The field stays when that is "".
func Text(err error, flag func(field string) string) string {
	var texts []string // former and new ones in turn
	for _, e := range wrapped(err) {
		if name := flag(e.Field()); name != "" {
			texts = append(texts, e.Error(), strings.Replace(e.Error(), e.Field(), name, 1))
		}
	}
	return strings.NewReplacer(texts...).Replace(err.Error())
}

// wrapped returns the errors of the tree that err is the root of which name a field.
func wrapped(err error) (list []Error) {
	if e, ok := err.(Error); ok && e.Field() != "" {
		list = append(list, e)
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return append(list, wrapped(e.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			list = append(list, wrapped(err)...)
		}
	}
	return list
}
