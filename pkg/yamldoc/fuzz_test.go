package yamldoc_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/yamldoc"
	"github.com/beeline-lb/beeline/tests/bounds"
)

// FuzzDocuments: whatever the text, each fault has a reason and a place that the file has,
// what is taken is JSON that, read as YAML, is the same, and the cost is bounded.
func FuzzDocuments(f *testing.F) {
	for _, text := range []string{
		"kind: K\nPlain: p\nnamed: {Plain: q}\noptional: 7\nperiod: 90s\nlabels: {a: {port: http}, b: null}\n",
		"# nothing\n---\n---\nlist: [{port: 8080, ratio: 0.5}, null]\nbytes: aGk=\nbig: 9007199254740993\n",
		"base: &b {x: [1, y, 70000]}\nnested: {<<: *b}\n---\n1: 2\n1: 3\n",
		"kind: [K]\nlabels: {a: {port: [], other: 1}}\nlist: {port: 1}\nkind: twice\n",
		"a: &a [*a]\n",
		"'a[0].b': 1\na: [{b: 2}]\n",
		`{"kind": "K", "nested": {"x": [1, -2, 3e4]}, "Plain": "\u0000\ud83d\ude00"}`,
		"list: []\n'list[-1]': 1\n'list[x]': 1\n'list[]': 1\n",
		"- no object\n",
		"{a: b\n",
		"nested: " + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		bounds.Check(t, len(raw), func() { wantPlaces(t, raw) })
	})
}

// wantPlaces fails the test unless faults have places, and what is taken means the same
// again.
func wantPlaces(t *testing.T, raw []byte) {
	t.Helper()
	docs, faults := yamldoc.Split(raw)
	number := 0
	for _, d := range docs {
		if d.Number <= number {
			t.Fatalf("document %d is after document %d", d.Number, number)
		}
		number = d.Number
		data, more := d.JSON()
		if (data == nil) == (len(more) == 0) {
			t.Fatalf("JSON %q beside faults %v", data, more)
		}
		if len(more) == 0 {
			wantSame(t, data)
			more = d.Strict(&object{})
		}
		faults = append(faults, more...)
	}
	lines := bytes.Count(raw, []byte("\n")) + bytes.Count(raw, []byte("\r")) +
		bytes.Count(raw, []byte("\u0085")) + bytes.Count(raw, []byte("\u2028")) + bytes.Count(raw, []byte("\u2029")) + 1
	for _, fault := range faults {
		if fault.Reason == "" || fault.Document < 1 || fault.Line < 0 || fault.Line > lines+1 {
			t.Fatalf("fault %+v of a file of %d lines", fault, lines)
		}
	}
}

// wantSame fails the test unless the JSON of a document, taken for one itself, has the same.
func wantSame(t *testing.T, data []byte) {
	t.Helper()
	var want, got any
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatalf("%q is no JSON: %v", data, err)
	}
	docs, faults := yamldoc.Split(data)
	if len(faults) > 0 {
		return // YAML has rules about keys and characters that JSON has not
	}
	if len(docs) != 1 {
		t.Fatalf("%q is %d documents", data, len(docs))
	}
	again, faults := docs[0].JSON()
	if len(faults) > 0 {
		t.Fatalf("%q, read again: %v", data, faults)
	}
	if err := json.Unmarshal(again, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%q becomes %q, %v", data, again, err)
	}
}
