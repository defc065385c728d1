package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Document is one YAML document of a file.
type Document struct {
	Number int        // counted from 1
	Root   *yaml.Node // the document's value
}

// Split returns the documents of raw. A syntax error ends it, since nothing behind it can be
// told apart; documents that hold nothing but comments are left out.
func Split(raw []byte) ([]*Document, []*Fault) {
	var docs []*Document
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	for number := 1; ; number++ {
		var node yaml.Node
		err := dec.Decode(&node)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return docs, []*Fault{syntaxFault(number, err)}
		}
		if node.Kind != yaml.DocumentNode || node.Content[0].ShortTag() == "!!null" {
			continue
		}
		docs = append(docs, &Document{number, node.Content[0]})
	}
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)

func syntaxFault(number int, err error) *Fault {
	f := &Fault{Document: number, Reason: err.Error()}
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		f.Line, _ = strconv.Atoi(m[1]) // 0 when the parser names no line
		f.Reason = m[2]
	}
	return f
}

// FaultAt places reason at the field path, or at the nearest field above it that
// the document has.
func (d *Document) FaultAt(path, reason string) *Fault {
	return &Fault{Document: d.Number, Line: line(d.Root, path), Path: path, Reason: reason}
}

// line returns the line of the field that path names below node, or of the
// deepest field on the way to it that exists.
func line(node *yaml.Node, path string) int {
	at := node.Line
	for _, step := range pathSteps(path) {
		key, value := child(node, step)
		if value == nil {
			break
		}
		at, node = key.Line, value
	}
	return at
}

var pathStep = regexp.MustCompile(`\[[^\]]*\]|[^.\[\]]+`)

// pathSteps splits a field path into keys and, still in brackets, indices.
func pathSteps(path string) []string { return pathStep.FindAllString(path, -1) }

// child returns the value below node that step names and the node whose line
// tells where it stands; nil when there is none. The last of equal keys counts,
// which is the one that a fault is about.
func child(node *yaml.Node, step string) (key, value *yaml.Node) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	name := strings.Trim(step, "[]")
	switch node.Kind {
	case yaml.SequenceNode:
		if i, err := strconv.ParseUint(name, 10, 31); err == nil && int(i) < len(node.Content) {
			return node.Content[i], node.Content[i]
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == name {
				key, value = node.Content[i], node.Content[i+1]
			}
		}
	}
	return key, value
}

// checkKeys finds keys that JSON cannot carry: equal ones in one mapping and
// ones that are not strings.
func (d *Document) checkKeys() []*Fault {
	var faults []*Fault
	var walk func(node *yaml.Node, path *field.Path)
	walk = func(node *yaml.Node, path *field.Path) {
		if node.Kind == yaml.SequenceNode {
			for i, item := range node.Content {
				walk(item, path.Index(i))
			}
		}
		if node.Kind != yaml.MappingNode {
			return
		}
		seen := map[string]int{}
		for i := 0; i+1 < len(node.Content); i += 2 {
			key := node.Content[i]
			below := path.Child(key.Value)
			reason := ""
			if first, dup := seen[key.Value]; dup {
				reason = fmt.Sprintf("duplicate field, first given in line %d", first)
			} else if tag := key.ShortTag(); tag != "!!str" && tag != "!!merge" {
				reason = "a key must be a string: put it in quotes"
			}
			if reason != "" {
				faults = append(faults, &Fault{Document: d.Number, Line: key.Line, Path: below.String(), Reason: reason})
			}
			seen[key.Value] = key.Line
			walk(node.Content[i+1], below)
		}
	}
	walk(d.Root, nil)
	return faults
}

// Faults places errors in the document.
func (d *Document) Faults(errs field.ErrorList) []*Fault {
	var faults []*Fault
	for _, err := range errs {
		faults = append(faults, d.FaultAt(err.Field, err.ErrorBody()))
	}
	return faults
}
