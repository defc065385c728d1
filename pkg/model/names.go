package model

import (
	"fmt"
	"slices"
	"strings"
)

// names are the names of the values of a type, in order. The zero value is the default,
// which has no name.
type names[T ~uint8] []string

// of returns the name of a value.
func (n names[T]) of(v T) string {
	if int(v) >= len(n) {
		return fmt.Sprintf("%T(%d)", v, uint8(v))
	}
	return n[v]
}

// all returns the names.
func (n names[T]) all() []string { return slices.Clone(n[1:]) }

// parse returns the value of a name.
func (n names[T]) parse(name string) (T, error) {
	if i := slices.Index(n, name); i > 0 {
		return T(i), nil
	}
	return 0, fmt.Errorf("%s is none of %s", Quote(name), strings.Join(n[1:], ", "))
}
