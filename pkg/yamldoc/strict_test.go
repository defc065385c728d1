package yamldoc_test

import (
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/beeline-lb/beeline/pkg/yamldoc"
)

type inner struct {
	Port  intstr.IntOrString `json:"port"`
	Ratio float32            `json:"ratio"`
}

type embedded struct {
	Plain string
}

// object has a field of each kind that types of configurations and manifests have.
type object struct {
	metav1.TypeMeta `json:",inline"`
	embedded        `json:",inline"`
	Named           embedded           `json:"named"`
	Optional        *int32             `json:"optional"`
	Period          metav1.Duration    `json:"period"`
	Labels          map[string]*inner  `json:"labels"`
	List            []inner            `json:"list"`
	Bytes           []byte             `json:"bytes"`
	Big             int64              `json:"big"`
	Hidden          string             `json:"-"`
	Nested          map[string][]int16 `json:"nested"`
}

// decode returns the object that a document holds and its faults.
func decode(t *testing.T, text string) (object, string) {
	t.Helper()
	docs, faults := yamldoc.Split([]byte(text))
	if len(faults) > 0 || len(docs) != 1 {
		t.Fatalf("%d documents, faults %v", len(docs), faults)
	}
	var o object
	faults = docs[0].Strict(&o)
	var told []string
	for _, f := range faults {
		told = append(told, f.Error())
	}
	return o, strings.Join(told, "\n")
}

func TestStrict(t *testing.T) {
	got, faults := decode(t, `
kind: K
Plain: p
named: {Plain: q}
optional: 7
period: 90s
labels: {a: {port: http}, b: null}
list: [{port: 8080, ratio: 0.5}, null]
bytes: aGk=
big: 9007199254740993
nested: {x: [1, 2]}
`)
	seven := int32(7)
	want := object{
		TypeMeta: metav1.TypeMeta{Kind: "K"}, embedded: embedded{"p"}, Named: embedded{"q"}, Optional: &seven,
		Labels: map[string]*inner{"a": {Port: intstr.FromString("http")}},
		List:   []inner{{Port: intstr.FromInt32(8080), Ratio: 0.5}, {}},
		Bytes:  []byte("hi"), Big: 9007199254740993, Nested: map[string][]int16{"x": {1, 2}},
	}
	want.Period.Duration = 90e9
	if faults != "" || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\n%s", got, faults)
	}
}

// TestNulls takes null for a field that is not given.
func TestNulls(t *testing.T) {
	got, faults := decode(t, "kind: null\nperiod: null\nlist: [{port: null}]\noptional: null\nlabels: null\n")
	if faults != "" || !reflect.DeepEqual(got, object{List: []inner{{}}}) {
		t.Errorf("got %+v\n%s", got, faults)
	}
}

// TestStrictFaults tells everything that is wrong, by line.
func TestStrictFaults(t *testing.T) {
	_, faults := decode(t, `kind: [K]
plain: p
named: q
optional: 2147483648
period: 90
labels: {a: {port: [], other: 1}}
list: {port: 1}
bytes: 7
big: 1.5
Hidden: x
nested: {x: [1, y, 70000]}
`)
	want := `document 1: line 1: kind: must be a string, not array
document 1: line 2: plain: unknown field
document 1: line 3: named: must be an object, not string
document 1: line 4: optional: must be an integer, not number 2147483648
document 1: line 5: period: must be a duration such as 30s or 1h30m, not 90
document 1: line 6: labels.a.other: unknown field
document 1: line 6: labels.a.port: must be an integer, not array
document 1: line 7: list: must be a list, not object
document 1: line 8: bytes: must be a list, not number
document 1: line 9: big: must be an integer, not number 1.5
document 1: line 10: Hidden: unknown field
document 1: line 11: nested.x[1]: must be an integer, not string
document 1: line 11: nested.x[2]: must be an integer, not number 70000`
	if faults != want {
		t.Errorf("got\n%s", faults)
	}
}

// TestRoot tells of paths from the document on.
func TestRoot(t *testing.T) {
	docs, _ := yamldoc.Split([]byte("items:\n- {period: 1s}\n- {period: soon}\n"))
	var list struct {
		Items yamldoc.Skipped `json:"items"`
	}
	faults := docs[0].Strict(&list)
	docs[0].Items(func(item *yamldoc.Document) bool {
		faults = append(faults, item.Strict(&object{})...)
		return true
	})
	if len(faults) != 1 || faults[0].Line != 3 || faults[0].Path != "items[1].period" {
		t.Errorf("got %v", faults)
	}
}
