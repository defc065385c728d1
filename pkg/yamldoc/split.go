package yamldoc

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Split returns the documents of raw. A syntax error ends it, since nothing behind it can be
// told apart; documents that hold nothing but comments are left out.
func Split(raw []byte) ([]*Document, []*Fault) {
	var docs []*Document
	faults := Each(raw, func(d *Document) bool {
		docs = append(docs, d)
		return true
	})
	return docs, faults
}

// Each calls do for each document that [Split] returns, one after the other, until do returns
// false. It keeps none of them. The documents of a file of JSON refer to raw.
func Each(raw []byte, do func(*Document) bool) []*Fault {
	if isJSON(raw) {
		eachJSON(raw, do)
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	for number := 1; ; number++ {
		var node yaml.Node
		err := dec.Decode(&node)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return []*Fault{syntaxFault(number, err)}
		}
		if node.Kind != yaml.DocumentNode || node.Content[0].ShortTag() == "!!null" {
			continue
		}
		if !do(&Document{Number: number, root: node.Content[0]}) {
			return nil
		}
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

// isJSON reports whether each document of raw is an object in JSON. White space and empty
// documents may stand between them.
func isJSON(raw []byte) bool {
	if value := bytes.TrimLeft(raw, jsonSpace+"-"); len(value) == 0 || value[0] != '{' || !utf8.Valid(raw) {
		return false
	}
	for text := range texts(raw) {
		if value := bytes.TrimLeft(text, jsonSpace); len(value) > 0 && (value[0] != '{' || !json.Valid(value)) {
			return false
		}
	}
	return true
}

// jsonSpace is the white space of JSON.
const jsonSpace = " \t\r\n"

// eachJSON is [Each] for documents in JSON. The number counts as YAML does: what stands before
// the first marker is a document only if it is more than white space.
func eachJSON(raw []byte, do func(*Document) bool) {
	number, line, first := 1, 1, true
	for text := range texts(raw) {
		value := bytes.TrimLeft(text, jsonSpace)
		if len(value) > 0 && !do(&Document{Number: number, data: value, line: line + lines(text[:len(text)-len(value)])}) {
			return
		}
		if line += lines(text); len(value) > 0 || !first {
			number++
		}
		first = false
	}
}

// lines returns how many lines end in text.
func lines(text []byte) int { return bytes.Count(text, []byte("\n")) }

// marker stands between documents, at the beginning of a line. JSON has it nowhere: it has no
// line breaks in strings.
const marker = "---"

// texts returns what is between the markers.
func texts(raw []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for {
			at := nextMarker(raw)
			if at < 0 {
				yield(raw)
				return
			}
			if !yield(raw[:at]) {
				return
			}
			raw = raw[at+len(marker):]
		}
	}
}

// nextMarker returns where the next marker is; -1 is that there is none.
func nextMarker(raw []byte) int {
	for at := 0; ; at++ {
		i := bytes.Index(raw[at:], []byte(marker))
		if i < 0 {
			return -1
		}
		at += i
		end := at + len(marker)
		begins := at == 0 || raw[at-1] == '\n'
		if begins && (end == len(raw) || strings.IndexByte(jsonSpace, raw[end]) >= 0) {
			return at
		}
	}
}
