package yamldoc

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Document is one document of a file, or an item of a list in it.
type Document struct {
	Number int         // of the document, counted from 1
	Path   *field.Path // of an item; nil is the document itself

	root *yaml.Node // the value; nil until it is needed, for JSON
	// data is the value as JSON. In a file of JSON it is its text, which begins at line.
	data []byte
	line int
}

// FaultAt places reason at the field path, counted from the document on, or at the nearest
// field above it that the document has.
func (d *Document) FaultAt(path, reason string) *Fault {
	below := strings.TrimPrefix(path, Below(d.Path, ""))
	return &Fault{Document: d.Number, Line: line(d.node(), below), Path: path, Reason: reason}
}

// node returns the value with the lines of its fields.
func (d *Document) node() *yaml.Node {
	if d.root == nil {
		d.root = jsonNode(d.data, d.line)
	}
	return d.root
}

// line returns the line of the field that path names below node, or of the
// deepest field of its path that exists.
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

// keysFit reports whether JSON can carry all keys below node: they are strings, and no
// mapping has one twice.
func keysFit(node *yaml.Node) bool {
	switch node.Kind {
	case yaml.SequenceNode:
		return !slices.ContainsFunc(node.Content, func(item *yaml.Node) bool { return !keysFit(item) })
	case yaml.MappingNode:
		seen := make(map[string]bool, len(node.Content)/2)
		for i := 0; i+1 < len(node.Content); i += 2 {
			key := node.Content[i]
			if tag := key.ShortTag(); seen[key.Value] || tag != "!!str" && tag != "!!merge" || !keysFit(node.Content[i+1]) {
				return false
			}
			seen[key.Value] = true
		}
	}
	return true
}

// checkKeys finds the keys that [keysFit] is about.
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
	if root := d.node(); !keysFit(root) {
		walk(root, d.Path)
	}
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
