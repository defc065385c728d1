package yamldoc

import (
	"bytes"
	"encoding/json"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// itemsField is the field of the objects in a list of them.
const itemsField = "items"

// Skipped is the type of a list that is not decoded with the object it is in.
type Skipped struct{}

// UnmarshalJSON fails for what is no list.
func (*Skipped) UnmarshalJSON(data []byte) error {
	if data[0] == '[' {
		return nil
	}
	var list []json.RawMessage
	return json.Unmarshal(data, &list)
}

// Items calls do for each of the items of a document, one after the other, until do returns
// false. It keeps none of them. A document with faults may have none.
func (d *Document) Items(do func(*Document) bool) {
	data, _ := d.JSON()
	dec := json.NewDecoder(bytes.NewReader(data))
	if !enterItems(dec) {
		return
	}
	root, line := field.NewPath(Below(d.Path, itemsField)), d.line
	var text json.RawMessage
	for i, counted := 0, 0; dec.More(); i++ {
		if err := dec.Decode(&text); err != nil {
			return // not of valid JSON
		}
		end := int(dec.InputOffset())
		item := &Document{Number: d.Number, Path: root.Index(i), data: data[end-len(text) : end]}
		if d.root != nil {
			item.root = d.itemNode(i)
		} else {
			line += lines(data[counted : end-len(text)])
			counted = end - len(text)
			item.line = line
		}
		if !do(item) {
			return
		}
	}
}

// enterItems reads up to the first item and reports whether there may be one.
func enterItems(dec *json.Decoder) bool {
	if _, err := dec.Token(); err != nil {
		return false
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return false
		}
		if key == itemsField {
			begin, err := dec.Token()
			return err == nil && begin == json.Delim('[')
		}
		var skip json.RawMessage
		if err := dec.Decode(&skip); err != nil {
			return false
		}
	}
	return false
}

// itemNode returns the node of an item, or one with the document's line when the item comes
// from elsewhere.
func (d *Document) itemNode(i int) *yaml.Node {
	if _, items := child(d.root, itemsField); items != nil {
		if items.Kind == yaml.AliasNode {
			items = items.Alias
		}
		if items.Kind == yaml.SequenceNode && i < len(items.Content) {
			return items.Content[i]
		}
	}
	return &yaml.Node{Line: d.root.Line}
}
