package file

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkChange reads and applies a change of one of 100 files that hold 100
// Services each.
func BenchmarkChange(b *testing.B) {
	r, err := newRules(&Options{ServiceRanges: prefixes("10.96.0.0/16")})
	if err != nil {
		b.Fatal(err)
	}
	file := func(i, port int) []byte {
		var docs []string
		for j := range 100 {
			docs = append(docs, portYAML(fmt.Sprintf("s-%d-%d", i, j), port))
		}
		return []byte(strings.Join(docs, "---\n"))
	}
	var files []candidate
	for i := range 100 {
		c, faults := r.decode(file(i, 80))
		if faults != nil {
			b.Fatal(faults)
		}
		files = append(files, candidate{fmt.Sprintf("%03d.yaml", i), []*content{c}})
	}
	current, _ := r.plan(newCatalog(), files, nil)
	port := 80
	for b.Loop() {
		port++
		c, _ := r.decode(file(7, port%1000+1))
		files[7].choices = []*content{c}
		next, clashes := r.plan(current, files, nil)
		if u := current.diff(next); len(u.PutServices) != 100 || len(clashes) != 0 {
			b.Fatalf("%d Services and clashes %v, want 100 and none", len(u.PutServices), clashes)
		}
		current = next
	}
}
