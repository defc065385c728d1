package yamldoc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// JSON returns the document as JSON. What JSON cannot carry and what is no object is a
// fault.
func (d *Document) JSON() ([]byte, []*Fault) {
	if d.data != nil {
		return d.data, nil
	}
	if faults := d.checkKeys(); len(faults) > 0 {
		return nil, faults
	}
	if d.root.Kind != yaml.MappingNode {
		return nil, []*Fault{d.FaultAt(Below(d.Path, ""), "must be an object with apiVersion and kind")}
	}
	var v any
	if err := d.root.Decode(&v); err != nil {
		return nil, []*Fault{syntaxFault(d.Number, err)}
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, []*Fault{d.FaultAt(Below(d.Path, ""), err.Error())}
	}
	d.data = data
	return data, nil
}

// Strict decodes the document into v, which is zero and stays so when there are faults. Unknown
// fields, fields given twice and values of a wrong type are faults; all of them are returned, by
// line. A field that is null is as one that is not given.
func (d *Document) Strict(v any) []*Fault {
	data, faults := d.JSON()
	if len(faults) > 0 || decode(data, v) {
		return faults
	}
	unknown, faults := d.explain(data, v)
	return sorted(append(unknown, faults...))
}

// Loose is Strict that passes over unknown fields and, in JSON, over those given twice.
func (d *Document) Loose(v any) []*Fault {
	data, faults := d.JSON()
	if len(faults) > 0 || kjson.UnmarshalCaseSensitivePreserveInts(data, v) == nil && nullsFit(data, v) {
		return faults
	}
	_, faults = d.explain(data, v)
	return faults
}

// Type returns the apiVersion and kind of the document.
func (d *Document) Type() (metav1.TypeMeta, []*Fault) {
	data, faults := d.JSON()
	if len(faults) > 0 {
		return metav1.TypeMeta{}, faults
	}
	if tm, ok := leadingType(data); ok {
		return tm, nil
	}
	var tm metav1.TypeMeta
	faults = d.Loose(&tm)
	return tm, faults
}

// leadingType reads apiVersion and kind where they are the first fields of an object.
func leadingType(data []byte) (tm metav1.TypeMeta, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if begin, err := dec.Token(); err != nil || begin != json.Delim('{') {
		return tm, false
	}
	for range 2 {
		key, _ := dec.Token()
		token, _ := dec.Token()
		value, isString := token.(string)
		switch {
		case !isString:
			return tm, false
		case key == "apiVersion":
			tm.APIVersion = value
		case key == "kind":
			tm.Kind = value
		}
	}
	return tm, tm.APIVersion != "" && tm.Kind != ""
}

// Lenient is Strict that returns unknown fields apart and decodes the others all the same.
func (d *Document) Lenient(v any) (unknown, faults []*Fault) {
	data, faults := d.JSON()
	if len(faults) > 0 || decode(data, v) {
		return nil, faults
	}
	return d.explain(data, v)
}

// decode decodes data into v and reports whether that is all: there is no fault, and no null
// that left something behind. If not, [Document.explain] has the last word.
func decode(data []byte, v any) bool {
	strict, err := kjson.UnmarshalStrict(data, v)
	return err == nil && len(strict) == 0 && nullsFit(data, v)
}

// nullsFit reports whether v, decoded from data, is as if fields that are null were not given.
func nullsFit(data []byte, v any) bool {
	return !bytes.Contains(data, []byte("null")) || !emptyValue(reflect.ValueOf(v))
}

// emptyValue reports whether a map in v has an empty value, as one that is null leaves behind.
func emptyValue(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return !v.IsNil() && emptyValue(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if emptyValue(v.Field(i)) {
				return true
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if emptyValue(v.Index(i)) {
				return true
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if value := v.MapIndex(key); value.IsZero() || emptyValue(value) {
				return true
			}
		}
	}
	return false
}

// explain decodes data into v again, piece by piece, and finds everything that is wrong with it.
func (d *Document) explain(data []byte, v any) (unknown, faults []*Fault) {
	reflect.ValueOf(v).Elem().SetZero()
	if faults := d.checkKeys(); len(faults) > 0 {
		return nil, faults
	}
	var tree any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&tree); err != nil {
		return nil, []*Fault{d.FaultAt(Below(d.Path, ""), err.Error())}
	}
	var c checker
	c.check(withoutNulls(tree), v)
	unknown, faults = d.place(c.unknown), d.place(c.wrong)
	if len(faults) > 0 {
		return unknown, faults
	}
	data, err := json.Marshal(tree)
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(data, v)
	}
	if err != nil {
		return unknown, []*Fault{d.FaultAt(Below(d.Path, ""), err.Error())}
	}
	return unknown, nil
}

// place returns what is wrong with its place in the file, by line.
func (d *Document) place(list []wrong) []*Fault {
	var faults []*Fault
	for _, w := range list {
		faults = append(faults, d.FaultAt(Below(d.Path, w.path), w.reason))
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
