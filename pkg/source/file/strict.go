package file

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// strict decodes the JSON of the document's object at root, which is nil for the
// document itself, into v. Unknown fields and values of a wrong type are faults.
func (d *document) strict(root *field.Path, data []byte, v any) []*Fault {
	unknown, err := kjson.UnmarshalStrict(data, v)
	if err != nil {
		path, reason := typeFault(data, err)
		return []*Fault{d.faultAt(below(root, path), reason)}
	}
	var faults []*Fault
	for _, err := range unknown {
		path, reason := "", err.Error()
		if fe, ok := err.(kjson.FieldError); ok {
			path = fe.FieldPath()
			reason, _, _ = strings.Cut(reason, ` "`)
		}
		faults = append(faults, d.faultAt(below(root, path), reason))
	}
	return faults
}

// below returns the field path of path seen from root.
func below(root *field.Path, path string) string {
	if root == nil {
		return path
	}
	return strings.TrimSuffix(root.String()+"."+path, ".")
}

var indices = regexp.MustCompile(`\[\d+\]`)

// typeFault returns where in data and why decoding failed. The error itself
// names a field without the indices of lists; its offset, which is that of the
// whole of data unless the type decodes itself, tells them.
func typeFault(data []byte, err error) (path, reason string) {
	var te *json.UnmarshalTypeError
	if !errors.As(err, &te) {
		return "", err.Error()
	}
	reason = fmt.Sprintf("must be %s, not %s", typeName(te.Type.Kind().String()), te.Value)
	path = pathAt(data, te.Offset)
	if indices.ReplaceAllString(path, "") != te.Field {
		path = te.Field
	}
	return path, reason
}

// typeName returns the JSON name of a Go kind.
func typeName(kind string) string {
	switch {
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "an integer"
	case kind == "bool":
		return "true or false"
	case kind == "slice":
		return "a list"
	case kind == "struct", kind == "map":
		return "an object"
	}
	return "a " + kind
}

// level is an object or list that pathAt is inside of.
type level struct {
	path  string
	list  bool
	index int
	key   string // "" while a key is to come
}

// next returns the path of the next value of the level and steps over it.
func (l *level) next() string {
	if l.list {
		l.index++
		return fmt.Sprintf("%s[%d]", l.path, l.index-1)
	}
	key := l.key
	l.key = ""
	return strings.TrimPrefix(l.path+"."+key, ".")
}

// pathAt returns the field path of the last value in data that starts before
// offset.
func pathAt(data []byte, offset int64) string {
	levels := []*level{{list: true}}
	path := ""
	dec := json.NewDecoder(bytes.NewReader(data))
	for {
		start := dec.InputOffset()
		start += int64(len(data[start:]) - len(bytes.TrimLeft(data[start:], " \t\r\n,:")))
		tok, err := dec.Token()
		if err != nil || start >= offset {
			return strings.TrimPrefix(strings.TrimPrefix(path, "[0]"), ".")
		}
		top := levels[len(levels)-1]
		if tok == json.Delim('}') || tok == json.Delim(']') {
			levels = levels[:len(levels)-1]
			continue
		}
		if key, ok := tok.(string); ok && !top.list && top.key == "" {
			top.key = key
			continue
		}
		path = top.next()
		if tok == json.Delim('{') || tok == json.Delim('[') {
			levels = append(levels, &level{path: path, list: tok == json.Delim('[')})
		}
	}
}
