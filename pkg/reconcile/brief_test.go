package reconcile

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestBrief: of errors that are joined, in whatever depth, the first are kept, and how many more there are.
func TestBrief(t *testing.T) {
	var all, inner []error
	for i := range maxErrors {
		all = append(all, fmt.Errorf("error %d", i))
		inner = append(inner, fmt.Errorf("inner %d", i))
	}
	err := errors.Join(all...)
	if got := brief(err); got != err {
		t.Errorf("of %d errors: %v", maxErrors, got)
	}
	want := err.Error() + "\nand 16 more"
	if got := brief(errors.Join(err, errors.Join(inner...))).Error(); got != want {
		t.Errorf("of many:\n%s\nwant\n%s", got, want)
	}
	if got := brief(errors.New(strings.Repeat("x", 1000))).Error(); len(got) != 1000 {
		t.Errorf("one error is %q", got)
	}
}
