package yamldoc_test

import (
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/yamldoc"
	"github.com/beeline-lb/beeline/tests/bounds"
)

// TestNested: what a file costs to read is in proportion to its size, however deep it goes.
func TestNested(t *testing.T) {
	const depth = 9000
	for name, text := range map[string]string{
		"lists":   "nested: " + strings.Repeat("[", depth) + strings.Repeat("]", depth),
		"objects": strings.Repeat("{a: ", depth) + "1" + strings.Repeat("}", depth),
		"aliases": "a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n" +
			"c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c]\n" +
			"e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e]\n",
		"keys": strings.Repeat("? [a]\n: 1\n", 2000),
		"many": strings.Repeat("a: [1, x]\n---\n", 2000),
	} {
		t.Run(name, func(t *testing.T) {
			bounds.Check(t, len(text), func() {
				docs, faults := yamldoc.Split([]byte(text))
				for _, d := range docs {
					faults = append(faults, d.Strict(&object{})...)
				}
				if len(faults) == 0 {
					t.Error("it is taken")
				}
			})
		})
	}
}
