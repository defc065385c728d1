package yamldoc_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/yamldoc"
)

// asYAML is what makes a file in JSON one that only YAML can read; the lines stay the same.
const asYAML = "\n# a comment\n"

// TestJSONLikeYAML: files in JSON, which no YAML parser reads, have the same values, and the
// same faults at the same places, as they have in YAML.
func TestJSONLikeYAML(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"good":      {`{"kind": "K", "labels": {"a": {"port": 80}}, "list": [{"port": "http"}], "nested": {"x": [1]}}`, ""},
		"nulls":     {`{"kind": null, "period": null, "list": [null, {"port": null}], "labels": {"a": null, "b": {"port": 1}}, "nested": {"x": null}}`, ""},
		"two":       {"\n{\"kind\": \"a\"}\n---\n\n{\"kind\": 1}\n", "document 2: line 5: kind: must be a string, not number"},
		"leading":   {"---\n{\"kind\": \"a\"}\n---\n---  \n  {\"kind\": 1,\n\"x\": 2}", "document 3: line 5: kind: must be a string, not number\ndocument 3: line 6: x: unknown field"},
		"same line": {"--- {\"kind\": 1}\n---\t{\"kind\": 2}", "document 1: line 1: kind: must be a string, not number\ndocument 2: line 2: kind: must be a string, not number"},
		"duplicate": {"{\"labels\": {\"a\": {\"port\": 1},\n\"b\": {},\n\n\"a\": {\"port\": 2}}}", "document 1: line 4: labels.a: duplicate field, first given in line 1"},
		"deep":      {"{\"list\": [\n{\"port\": 1},\n{\"ratio\": 1,\n\"ratio\": 2}]}", "document 1: line 4: list[1].ratio: duplicate field, first given in line 3"},
		"unknown":   {"{\"labels\":\n{\"a\":\n{\"prot\": 1}}}", "document 1: line 3: labels.a.prot: unknown field"},
		"case":      {"{\n\"Kind\": \"K\"}", "document 1: line 2: Kind: unknown field"},
		"types":     {"{\"big\": 1.5,\n\"period\": 90,\n\"list\": {},\n\"nested\": {\"x\": [1, \"y\",\n70000]}}", "document 1: line 1: big: must be an integer, not number 1.5\ndocument 1: line 2: period: must be a duration such as 30s or 1h30m, not 90\ndocument 1: line 3: list: must be a list, not object\ndocument 1: line 4: nested.x[1]: must be an integer, not string\ndocument 1: line 5: nested.x[2]: must be an integer, not number 70000"},
		"separator": {"{\"kind\": \"a\\n---\\nb\", \"Plain\": \"--- \"}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, faults := decodeAll(tc.text)
			if faults != tc.want {
				t.Errorf("got\n%s\nwant\n%s", faults, tc.want)
			}
			yaml, faults := decodeAll(tc.text + asYAML)
			if faults != tc.want || !reflect.DeepEqual(got, yaml) {
				t.Errorf("JSON is %+v\nYAML %+v\n%s", got, yaml, faults)
			}
		})
	}
}

// decodeAll returns the objects of a file and its faults.
func decodeAll(text string) (objects []object, told string) {
	docs, faults := yamldoc.Split([]byte(text))
	for _, d := range docs {
		var o object
		faults = append(faults, d.Strict(&o)...)
		objects = append(objects, o)
	}
	var lines []string
	for _, f := range faults {
		lines = append(lines, f.Error())
	}
	return objects, strings.Join(lines, "\n")
}

// TestJSONBeyondYAML takes what is JSON and no YAML.
func TestJSONBeyondYAML(t *testing.T) {
	got, faults := decodeAll("{\n\t\"kind\": \"\\ud83d\\ude00\",\n\t\"labels\": {\"" + strings.Repeat("k", 2000) + "\": {\"port\": 1}}}")
	if faults != "" || got[0].Kind != "😀" || len(got[0].Labels) != 1 {
		t.Errorf("got %+v\n%s", got, faults)
	}
	if _, faults := decodeAll("{\"kind\": \"\xff\"}"); !strings.Contains(faults, "UTF-8") {
		t.Errorf("invalid UTF-8 is told of as %q", faults)
	}
}

// TestItems reads the items of a list in JSON and in YAML, each with its lines and path.
func TestItems(t *testing.T) {
	const text = "{\"other\": [1, {\"items\": 2}],\n\"items\": [\n  {\"kind\": \"a\"},\n\n  {\"kind\": \"b\",\n   \"x\": 1}, null,\n 7]}"
	const want = `a
document 1: line 6: items[1].x: unknown field
b

document 1: line 7: items[3]: must be an object, not number
`
	for _, text := range []string{text, text + asYAML} {
		docs, faults := yamldoc.Split([]byte(text))
		if len(docs) != 1 || len(faults) > 0 {
			t.Fatalf("%d documents, %v", len(docs), faults)
		}
		var got strings.Builder
		docs[0].Items(func(item *yamldoc.Document) bool {
			var o object
			for _, f := range item.Strict(&o) {
				fmt.Fprintln(&got, f)
			}
			if item.Path.String() != "items[3]" {
				item.Loose(&o)
				fmt.Fprintln(&got, o.Kind)
			}
			return true
		})
		if got.String() != want {
			t.Errorf("got\n%swant\n%s", got.String(), want)
		}
	}
	docs, _ := yamldoc.Split([]byte("items: &a [{kind: a}]\nother: *a\n---\n<<: {items: [{kind: [b]}]}\n---\nkind: x\n"))
	n := 0
	for _, d := range docs {
		d.Items(func(item *yamldoc.Document) bool {
			n++
			if faults := item.Strict(&object{}); d.Number == 2 && (len(faults) != 1 || faults[0].Line != 4) {
				t.Errorf("an item from elsewhere has %v", faults)
			}
			return true
		})
	}
	if n != 2 {
		t.Errorf("%d items, want 2", n)
	}
}
