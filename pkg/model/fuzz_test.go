package model

import (
	"slices"
	"strings"
	"testing"
)

// FuzzNames: a name that is taken is one of those that are told, and is the value's own; one
// that is not is in the error, with what is allowed, however long it is.
func FuzzNames(f *testing.F) {
	for _, name := range slices.Concat(Algorithms(), Forwardings(), []string{"TCP", "UDP", "SCTP", "", "RR", "dsr ", "\xff", strings.Repeat("x", 1000)}) {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		a, err := ParseAlgorithm(name)
		wantName(t, name, a.String(), err, Algorithms())
		w, err := ParseForwarding(name)
		wantName(t, name, w.String(), err, Forwardings())
		if p, err := ParseProtocol(name); err == nil && p.String() != name && name != "" {
			t.Errorf("%q is the protocol %s", name, p)
		} else if err != nil && len(err.Error()) > 400 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}

func wantName(t *testing.T, name, got string, err error, all []string) {
	t.Helper()
	switch {
	case err == nil && (got != name || !slices.Contains(all, name)):
		t.Errorf("%q is %q", name, got)
	case err != nil && got != "":
		t.Errorf("%q is %q beside the error %v", name, got, err)
	case err != nil && (!strings.Contains(err.Error(), strings.Join(all, ", ")) || len(err.Error()) > 400):
		t.Errorf("the error of %q: %v", name, err)
	}
}
