package file

import (
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// TestFaults decodes each NAME.yaml of testdata/faults.txtar, with a range of
// IPv4 only, and compares its faults with NAME.want.
func TestFaults(t *testing.T) {
	ar, err := txtar.ParseFile("testdata/faults.txtar")
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRules(&Options{ServiceRanges: prefixes("10.96.0.0/16")})
	if err != nil {
		t.Fatal(err)
	}
	manifests := map[string][]byte{}
	for _, f := range ar.Files {
		name, isWant := strings.CutSuffix(f.Name, ".want")
		if !isWant {
			manifests[f.Name] = f.Data
			continue
		}
		t.Run(name, func(t *testing.T) {
			raw, ok := manifests[name+".yaml"]
			if !ok {
				t.Fatal("no manifest")
			}
			c, faults := r.decode(raw)
			if (c == nil) != (len(faults) > 0) {
				t.Fatalf("content %v beside faults %v", c, faults)
			}
			if c != nil {
				_, clashes := r.plan(newCatalog(), []candidate{{name, []*content{c}}}, func(string, *content) []byte { return raw })
				faults = clashes[name]
			}
			var got strings.Builder
			for _, f := range faults {
				got.WriteString(f.Error() + "\n")
			}
			if got.String() != string(f.Data) {
				t.Fatalf("got\n%swant\n%s", got.String(), f.Data)
			}
		})
	}
}
