package config

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

//go:generate go run ../../tools/reference -types types.go -o ../../docs/configuration-reference.md

// Field is a field of the configuration, as its reference has it.
type Field struct {
	// Path begins with the kind, as BeelineConfiguration.tables.maxFlows.
	Path string
	// Flag is the name of the flag that sets it; "" is none.
	Flag string
	// Usage is the flag's text in --help.
	Usage string
	// Default is the value in JSON; "" is none, or one that depends on something else.
	Default string
	// Unused fields have no effect, or only some of those below have one.
	Unused bool
}

// Fields returns all fields but those that hold others, sorted by path.
func Fields() []Field {
	c := Default()
	flags := newFlagSet(c)
	byPath := make(map[string]*pflag.Flag)
	for name, path := range flags.fields {
		byPath[path] = flags.Lookup(name)
	}
	var list []Field
	add := func(path, value string, unused bool) {
		f := Field{Path: path, Default: value, Unused: unused}
		if flag := byPath[path]; flag != nil {
			f.Flag, f.Usage = flag.Name, flag.Usage
			delete(byPath, path)
		}
		list = append(list, f)
	}
	for name, value := range tree(c.KubeProxy) {
		leaves(KubeProxyKind+"."+name, value, func(path, value string) { add(path, value, slices.Contains(unused, name)) })
	}
	leaves(BeelineKind, tree(c.Beeline), func(path, value string) { add(path, value, false) })
	// Fields that JSON leaves out when they are empty.
	for path := range maps.Clone(byPath) {
		top, _, _ := strings.Cut(strings.TrimPrefix(path, KubeProxyKind+"."), ".")
		add(path, "", slices.Contains(unused, top))
	}
	list = slices.DeleteFunc(list, func(f Field) bool {
		return strings.HasSuffix(f.Path, ".kind") || strings.HasSuffix(f.Path, ".apiVersion")
	})
	slices.SortFunc(list, func(a, b Field) int { return strings.Compare(a.Path, b.Path) })
	return list
}

// leaves calls f with the paths at and below path that hold no object, and the values in JSON:
// "" for those that are empty.
func leaves(path string, value any, f func(path, value string)) {
	if object, ok := value.(map[string]any); ok {
		for name, below := range object {
			leaves(path+"."+name, below, f)
		}
		return
	}
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // it has come from JSON
	}
	if empty := []string{`""`, "null", "0", `"0s"`, `"0"`}; slices.Contains(empty, string(data)) {
		data = nil
	}
	f(path, string(data))
}
