package config

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// Flags are the flags that set a configuration. Make them with [AddFlags].
type Flags struct {
	// Files are the configuration files, as given by --config.
	Files []string

	given *flagSet
}

// AddFlags adds the flags to a command's, with the defaults that hold without files.
func AddFlags(to *pflag.FlagSet) *Flags {
	f := &Flags{given: newFlagSet(Default())}
	to.StringArrayVar(&f.Files, "config", nil,
		"file of a KubeProxyConfiguration, a BeelineConfiguration or both; may be given more than once")
	to.AddFlagSet(f.given.FlagSet)
	return f
}

// flagSet is a set of flags that write to one configuration.
type flagSet struct {
	*pflag.FlagSet
	// fields are the paths of the fields that flags set, by the flags' names.
	fields map[string]string
}

func newFlagSet(c *Config) *flagSet {
	f := &flagSet{FlagSet: pflag.NewFlagSet("", pflag.ContinueOnError), fields: make(map[string]string)}
	f.addKubeProxy(&c.KubeProxy)
	f.addSection(c)
	f.addBeeline(&c.Beeline)
	return f
}

// bind adds a flag for a field. add is the method of pflag for the field's type.
func bind[T any](f *flagSet, add func(field *T, name string, value T, usage string), field *T, name, path, usage string) {
	add(field, name, *field, usage)
	f.fields[name] = path
}

// bindValue adds a flag for a field of a type that pflag does not know.
func (f *flagSet) bindValue(value pflag.Value, name, path, usage string) {
	f.Var(value, name, usage)
	f.fields[name] = path
}

// text is a field of a string type.
type text[T ~string] struct{ field *T }

func (t text[T]) String() string {
	if t.field == nil {
		return ""
	}
	return string(*t.field)
}

func (t text[T]) Set(s string) error { *t.field = T(s); return nil }
func (t text[T]) Type() string       { return "string" }

// address is a field for the address of a server. An empty flag turns the server off,
// whereas an empty field is the default.
type address struct{ field *string }

func (a address) String() string {
	if a.field == nil || *a.field == addressOff {
		return ""
	}
	return *a.field
}

func (a address) Set(s string) error {
	if *a.field = s; s == "" {
		*a.field = addressOff
	}
	return nil
}

func (a address) Type() string { return "ip:port" }

// apply sets the flags that were given in c and records them there.
func (f *Flags) apply(c *Config) error {
	target := newFlagSet(c)
	var errs []error
	f.given.VisitAll(func(given *pflag.Flag) {
		if !given.Changed {
			return
		}
		if err := copyValue(target.Lookup(given.Name).Value, given.Value); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", given.Name, err))
			return
		}
	})
	applySection(f.given.FlagSet, c)
	for name, path := range target.fields {
		if f.given.Changed(name) {
			c.origin.flags[path] = name
		}
	}
	applyDeprecatedPorts(f.given.FlagSet, c)
	return errors.Join(errs...)
}

// copyValue sets one flag to the value of another of the same type.
func copyValue(to, from pflag.Value) error {
	if list, ok := from.(pflag.SliceValue); ok {
		return to.(pflag.SliceValue).Replace(list.GetSlice())
	}
	return to.Set(from.String())
}
