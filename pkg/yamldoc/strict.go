package yamldoc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// JSON returns the document as JSON. What JSON cannot carry and what is no object is a
// fault.
func (d *Document) JSON() ([]byte, []*Fault) {
	if faults := d.checkKeys(); len(faults) > 0 {
		return nil, faults
	}
	if d.Root.Kind != yaml.MappingNode {
		return nil, []*Fault{d.FaultAt("", "must be an object with apiVersion and kind")}
	}
	var v any
	if err := d.Root.Decode(&v); err != nil {
		return nil, []*Fault{syntaxFault(d.Number, err)}
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, []*Fault{d.FaultAt("", err.Error())}
	}
	return data, nil
}

// Strict decodes the JSON of the document's object at root, which is nil for the
// document itself, into v. Unknown fields and values of a wrong type are faults; all of
// them are returned, by line. A field that is null is as one that is not given.
func (d *Document) Strict(root *field.Path, data []byte, v any) []*Fault {
	unknown, faults := d.Lenient(root, data, v)
	return sorted(append(unknown, faults...))
}

// Loose is Strict that passes over unknown fields.
func (d *Document) Loose(root *field.Path, data []byte, v any) []*Fault {
	_, faults := d.Lenient(root, data, v)
	return faults
}

// Lenient is Strict that returns unknown fields apart and decodes the others all the same.
func (d *Document) Lenient(root *field.Path, data []byte, v any) (unknown, faults []*Fault) {
	var tree any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&tree); err != nil {
		return nil, []*Fault{d.FaultAt(Below(root, ""), err.Error())}
	}
	var c checker
	c.check(withoutNulls(tree), v)
	unknown, faults = d.place(root, c.unknown), d.place(root, c.wrong)
	if len(faults) > 0 {
		return unknown, faults
	}
	data, err := json.Marshal(tree)
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(data, v)
	}
	if err != nil {
		return unknown, []*Fault{d.FaultAt(Below(root, ""), err.Error())}
	}
	return unknown, nil
}

// place returns what is wrong below root with its place in the file, by line.
func (d *Document) place(root *field.Path, list []wrong) []*Fault {
	var faults []*Fault
	for _, w := range list {
		faults = append(faults, d.FaultAt(Below(root, w.path), w.reason))
	}
	return sorted(faults)
}

// sorted sorts faults of one document by line.
func sorted(faults []*Fault) []*Fault {
	slices.SortFunc(faults, func(a, b *Fault) int {
		return cmp.Or(a.Line-b.Line, strings.Compare(a.Path, b.Path))
	})
	return faults
}

// withoutNulls removes the fields of tree that are null, and returns it.
func withoutNulls(tree any) any {
	switch t := tree.(type) {
	case map[string]any:
		for key, value := range t {
			if value == nil {
				delete(t, key)
			}
			withoutNulls(value)
		}
	case []any:
		for _, item := range t {
			withoutNulls(item)
		}
	}
	return tree
}

// Below returns the field path of path seen from root.
func Below(root *field.Path, path string) string {
	if root == nil {
		return path
	}
	return strings.TrimSuffix(root.String()+"."+path, ".")
}
