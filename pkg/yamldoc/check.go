package yamldoc

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checker compares a JSON value with the Go type that it is to be decoded into.
// encoding/json ends at the first value of a wrong type, and tells no place at all when
// the type decodes itself.
type checker struct{ wrong, unknown []wrong }

// wrong is a fault without its place in the file.
type wrong struct{ path, reason string }

// check compares tree with what v points to.
func (c *checker) check(tree, v any) { c.value(tree, reflect.TypeOf(v).Elem(), "") }

var (
	unmarshaler = reflect.TypeFor[json.Unmarshaler]()
	duration    = reflect.TypeFor[metav1.Duration]()
)

func (c *checker) value(v any, t reflect.Type, path string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case v == nil:
	case reflect.PointerTo(t).Implements(unmarshaler):
		c.leaf(v, t, path)
	case t.Kind() == reflect.Struct:
		c.object(v, t, path)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		list, ok := v.([]any)
		if !ok {
			c.leaf(v, t, path)
		}
		for i, item := range list {
			c.value(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i))
		}
	case t.Kind() == reflect.Map:
		object, ok := v.(map[string]any)
		if !ok {
			c.leaf(v, t, path)
		}
		for key, value := range object {
			c.value(value, t.Elem(), below(path, key))
		}
	default:
		c.leaf(v, t, path)
	}
}

func (c *checker) object(v any, t reflect.Type, path string) {
	object, ok := v.(map[string]any)
	if !ok {
		c.leaf(v, t, path)
		return
	}
	fields := fieldsOf(t)
	for key, value := range object {
		if f, ok := fields[key]; ok {
			c.value(value, f, below(path, key))
		} else {
			c.unknown = append(c.unknown, wrong{below(path, key), "unknown field"})
		}
	}
}

// leaf tries to decode a value that has nothing below it to look at.
func (c *checker) leaf(v any, t reflect.Type, path string) {
	data, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(data, reflect.New(t).Interface())
	}
	if err != nil {
		c.wrong = append(c.wrong, wrong{path, typeReason(v, t, err)})
	}
}

// typeReason returns why v cannot be decoded into t.
func typeReason(v any, t reflect.Type, err error) string {
	var te *json.UnmarshalTypeError
	isType := errors.As(err, &te)
	switch {
	case t == duration:
		return fmt.Sprintf("must be a duration such as 30s or 1h30m, not %v", v)
	case isType:
		return fmt.Sprintf("must be %s, not %s", typeName(te.Type.Kind().String()), te.Value)
	}
	return err.Error()
}

// typeName returns the JSON name of a Go kind.
func typeName(kind string) string {
	switch {
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "an integer"
	case strings.HasPrefix(kind, "float"):
		return "a number"
	case kind == "bool":
		return "true or false"
	case kind == "slice":
		return "a list"
	case kind == "struct", kind == "map":
		return "an object"
	}
	return "a " + kind
}

// below returns the path of a field.
func below(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }

var fieldsByType sync.Map // reflect.Type → map[string]reflect.Type

// fieldsOf returns the types of a struct's fields by their JSON names.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if known, ok := fieldsByType.Load(t); ok {
		return known.(map[string]reflect.Type)
	}
	fields := make(map[string]reflect.Type)
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		if len(f.Index) == 1 || promoted(t, f.Index) {
			fields[name] = f.Type
		}
	}
	fieldsByType.Store(t, fields)
	return fields
}

// promoted reports whether all structs that hold a field are inline.
func promoted(t reflect.Type, index []int) bool {
	for _, i := range index[:len(index)-1] {
		f := t.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			return false
		}
		for t = f.Type; t.Kind() == reflect.Pointer; t = t.Elem() {
		}
	}
	return true
}
