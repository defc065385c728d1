package yamldoc

import (
	"bytes"
	"encoding/json"

	"go.yaml.in/yaml/v3"
)

// jsonNode returns a value in JSON with the lines of its fields; the text begins at line.
func jsonNode(text []byte, line int) *yaml.Node {
	p := &parser{dec: json.NewDecoder(bytes.NewReader(text)), text: text, line: line}
	p.dec.UseNumber()
	return p.value()
}

// parser makes nodes of valid JSON.
type parser struct {
	dec  *json.Decoder
	text []byte
	at   int64 // up to where lines are counted
	line int   // at that place
}

func (p *parser) value() *yaml.Node {
	token, _ := p.dec.Token()
	now := p.dec.InputOffset()
	p.line += lines(p.text[p.at:now])
	p.at = now
	node := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Line: p.line}
	switch t := token.(type) {
	case json.Delim:
		node.Kind, node.Tag = yaml.SequenceNode, "!!seq"
		if t == '{' {
			node.Kind, node.Tag = yaml.MappingNode, "!!map"
		}
		for p.dec.More() {
			node.Content = append(node.Content, p.value())
		}
		_, _ = p.dec.Token() // the end
	case string:
		node.Value = t
	}
	return node
}
