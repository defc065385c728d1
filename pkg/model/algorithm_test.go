package model

import "testing"

func TestAlgorithmNames(t *testing.T) {
	for _, name := range Algorithms() {
		a, err := ParseAlgorithm(name)
		if err != nil || a.String() != name || a == DefaultAlgorithm {
			t.Errorf("%q is %d, %q: %v", name, a, a, err)
		}
	}
	for _, name := range []string{"", "RR", "LC", "random "} {
		if a, err := ParseAlgorithm(name); err == nil || a != DefaultAlgorithm {
			t.Errorf("%q is %s", name, a)
		}
	}
}
